// SPDX-License-Identifier: GPL-2.0
/*
 * An ioengine of fio for volumes of hcablk, over libhcablk: no block device, and no kernel module
 * of hcablk on this machine. docs/user/fio.md has its options and examples.
 *
 * Where volumes are opened. A child must not use what its parent has opened with libhcablk, and
 * fio forks a process for each job unless thread=1. So fio's main process never uses the library:
 * setup() asks for the size of a volume in a child that ends at once, and init(), which runs in
 * the job, opens the volume. Jobs that are processes have a volume each, with one queue. Jobs that
 * are threads and have the same options share one, with a queue for each of them.
 *
 * Memory. fio allocates the data of all requests of a job at once (iomem_alloc()). That is one
 * registered region here, and a request is a piece of it.
 */
#include <hcablk.h>
#include <limits.h>
#include <sys/wait.h>

#include "fio.h"
#include "optgroup.h"
#include "options.h"

#define KEYS "/etc/hcablk/keys"
#define HOST_ID "/etc/hcablk/host_id"

#define MIXED "the jobs of a run must all be threads (thread=1), or all be processes"

/* The library's limit. */
#define QUEUES_MAX 127

struct engine_options {
	void *pad;		/* fio's: no option may be at offset 0 */
	char *address;
	char *volume;
	char *host_id;
	char *options;
	unsigned int port;
	unsigned int keys;
	unsigned int events;
};

static struct fio_option options[] = {
	{
		.name = "address",
		.lname = "Address of the target",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct engine_options, address),
		.help = "Address of the target, IPv4 or IPv6 (required)",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "volume",
		.lname = "Name of the volume",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct engine_options, volume),
		.help = "Name of the volume (required)",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "host_id",
		.lname = "Id of this host",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct engine_options, host_id),
		.help = "Id of this host, a UUID; default: the one in " HOST_ID,
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "keys",
		.lname = "Prove who this host is",
		.type = FIO_OPT_BOOL,
		.off1 = offsetof(struct engine_options, keys),
		.def = "0",
		.help = "1: prove who this host is, with the keys in " KEYS,
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "port",
		.lname = "Port of the target",
		.type = FIO_OPT_INT,
		.off1 = offsetof(struct engine_options, port),
		.minval = 1,
		.maxval = 65535,
		.def = "7744",
		.help = "Port of the target",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "events",
		.lname = "Completion by events",
		.type = FIO_OPT_BOOL,
		.off1 = offsetof(struct engine_options, events),
		.def = "0",
		.help = "0: poll for completions; 1: sleep until an event reports them",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = "options",
		.lname = "Options of libhcablk",
		.type = FIO_OPT_STR_STORE,
		.off1 = offsetof(struct engine_options, options),
		.help = "Options of libhcablk (man 3 hcablk), for example queue-depth=32,eager-write=0",
		.category = FIO_OPT_C_ENGINE,
		.group = FIO_OPT_G_INVALID,
	},
	{
		.name = NULL,
	},
};

/* The state that jobs with the same options share. */
struct source {
	struct source *next;
	char *key;
	uint64_t size;
	uint32_t block_size;
	bool read_only;
	unsigned int waiting;		/* threads that were set up and have not begun */
};

/* An open volume; threads share it. */
struct shared {
	struct shared *next;
	char *key;
	struct hcablk_volume *volume;
	unsigned int users;
};

struct job {
	struct shared *shared;
	struct hcablk_queue *queue;
	struct hcablk_memory *memory;
	char *data;			/* where the memory begins */
	unsigned int depth;
	unsigned int pending;		/* requests that wait for commit() */
	unsigned int nr_refused;
	bool is_explained;
	struct hcablk_request *requests;
	struct hcablk_piece *pieces;
	struct hcablk_completion *completions;
	struct io_u **refused;		/* not accepted by the library, to be reported */
	struct io_u **ended;		/* what getevents() has found */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct source *sources;
static struct shared *volumes;
/* The process that has used the library: this one, or one that it was forked from. 0: neither has. */
static pid_t used_by;
/* Whether the first job that was set up is a thread: all jobs must be alike. */
static bool are_threads;

extern struct ioengine_ops ioengine;

static void *allocated(void *memory)
{
	if (!memory) {
		log_err("hcablk: out of memory\n");
		abort();
	}
	return memory;
}

/*
 * fio's structures can differ although FIO_IOOPS_VERSION and the version do not: Debian's fio 3.39 has one option more than
 * the release. But fio's table of options contains the offsets of the fields that this engine reads.
 */
static const struct {
	const char *option;
	size_t offset;
} fields[] = {
	{ "rw", offsetof(struct thread_options, td_ddir) },
	{ "iodepth", offsetof(struct thread_options, iodepth) },
	{ "bs", offsetof(struct thread_options, bs) },
	{ "nrfiles", offsetof(struct thread_options, nr_files) },
	{ "sync", offsetof(struct thread_options, sync_io) },
	{ "thread", offsetof(struct thread_options, use_thread) },
	{ "disable_clat", offsetof(struct thread_options, disable_clat) },
	{ "read_iolog", offsetof(struct thread_options, read_iolog_file) },
	{ NULL },
};

static bool has_field(const char *option, size_t offset)
{
	const struct fio_option *known;

	for (known = fio_options; known->name; known++) {
		if (!strcmp(known->name, option))
			return known->off1 == offset;
	}
	return false;
}

/* Returns whether the engine was built for the version of this fio. */
static bool is_this_fio(struct thread_data *td)
{
	unsigned int n = 0;

	if (strcmp(fio_version_string, FIO_VERSION)) {
		log_err("hcablk: this engine was built for %s, and this is %s\n", FIO_VERSION, fio_version_string);
		return false;
	}
	while (fields[n].option && has_field(fields[n].option, fields[n].offset))
		n++;
	if (!fields[n].option && td->io_ops == &ioengine)
		return true;
	log_err("hcablk: this engine was built for another %s: build it with the source of the one that runs\n", FIO_VERSION);
	return false;
}

/* Returns the first line of a file in `line`, without its end. */
static bool first_line(const char *path, char *line, size_t size)
{
	FILE *file = fopen(path, "r");
	bool got = file && fgets(line, size, file);

	if (!got && file)
		errno = ENODATA;
	if (file)
		fclose(file);
	if (got)
		line[strcspn(line, "\n")] = 0;
	return got;
}

static bool set_key(struct hcablk_options *made, const char *name, const char *path, char *why, size_t size)
{
	char key[512];

	if (!first_line(path, key, sizeof(key))) {
		snprintf(why, size, "cannot read a key from %s: %s", path, strerror(errno));
		return false;
	}
	if (hcablk_options_set(made, name, key)) {
		snprintf(why, size, "%s: %s", path, hcablk_error());
		return false;
	}
	return true;
}

static bool set_keys(struct hcablk_options *made, const struct engine_options *o, char *why, size_t size)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), KEYS "/targets/%s", o->address);
	if (access(path, F_OK))
		snprintf(path, sizeof(path), KEYS "/targets/default");
	return set_key(made, "host-key", KEYS "/host", why, size) && set_key(made, "target-key", path, why, size);
}

/* Sets the library's options that options=NAME=VALUE,… lists. */
static bool set_named(struct hcablk_options *made, const struct engine_options *o, char *why, size_t size)
{
	char *named = allocated(strdup(o->options ?: "")), *rest = named, *name;
	bool is_set = true;

	while (is_set && (name = strsep(&rest, ","))) {
		char *value = strchr(name, '=');
		size_t length;

		if (!*name)
			continue;
		if (value)
			*value++ = 0;
		length = strlen(name);
		is_set = false;
		if (!value)
			snprintf(why, size, "options: %s is not NAME=VALUE", name);
		else if (!strcmp(name, "queues"))
			snprintf(why, size, "options: queues cannot be set: each job has one");
		else if (length > 4 && !strcmp(name + length - 4, "-key"))
			snprintf(why, size, "options: keys are not given by %s: keys=1 reads those in " KEYS, name);
		else if (hcablk_options_set(made, name, value))
			snprintf(why, size, "options: %s: %s", name, hcablk_error());
		else
			is_set = true;
	}
	free(named);
	return is_set;
}

/* Opens a volume with this number of queues. NULL: `why` has the reason. */
static struct hcablk_volume *open_volume(const struct engine_options *o, unsigned int queues, char *why, size_t size)
{
	struct hcablk_volume *volume = NULL;
	struct hcablk_options *made;
	char host_id[64], number[16];
	const char *host = o->host_id;

	if (!host && first_line(HOST_ID, host_id, sizeof(host_id)))
		host = host_id;
	if (!host) {
		snprintf(why, size, "there is no " HOST_ID ": set host_id (`hcablk host-id` prints it)");
		return NULL;
	}
	made = hcablk_options_new(o->address, o->volume, host);
	if (!made) {
		snprintf(why, size, "%s", hcablk_error());
		return NULL;
	}
	if (!set_named(made, o, why, size) || (o->keys && !set_keys(made, o, why, size)))
		goto out;
	snprintf(number, sizeof(number), "%u", queues);
	if (hcablk_options_set(made, "queues", number)) {
		snprintf(why, size, "%s", hcablk_error());
		goto out;
	}
	snprintf(number, sizeof(number), "%u", o->port);
	if (hcablk_options_set(made, "port", number) || hcablk_open(made, &volume))
		snprintf(why, size, "volume %s of target %s: %s", o->volume, o->address, hcablk_error());
out:
	hcablk_options_free(made);
	return volume;
}

static char *key_of(const struct engine_options *o)
{
	char *key;

	if (asprintf(&key, "%s\n%s\n%s\n%s\n%u %u", o->address, o->volume, o->host_id ?: "", o->options ?: "",
		     o->port, o->keys) < 0)
		key = NULL;
	return allocated(key);
}

struct answer {
	uint64_t size;
	uint32_t block_size;
	bool is_open, read_only;
	char why[512];
};

static void look(const struct engine_options *o, struct answer *answer)
{
	struct hcablk_volume *volume = open_volume(o, 1, answer->why, sizeof(answer->why));

	if (!volume)
		return;
	answer->is_open = true;
	answer->size = hcablk_size(volume);
	answer->block_size = hcablk_block_size(volume);
	answer->read_only = hcablk_is_read_only(volume);
	hcablk_close(volume);
}

/* Asks for the size of a volume in a child, so that this process does not use the library. */
static void look_in_child(const struct engine_options *o, struct answer *answer)
{
	int ends[2];
	ssize_t got;
	pid_t child;

	memset(answer, 0, sizeof(*answer));
	if (pipe(ends)) {
		snprintf(answer->why, sizeof(answer->why), "cannot make a pipe: %s", strerror(errno));
		return;
	}
	child = fork();
	if (!child) {
		look(o, answer);
		_exit(write(ends[1], answer, sizeof(*answer)) != sizeof(*answer));
	}
	close(ends[1]);
	if (child < 0) {
		snprintf(answer->why, sizeof(answer->why), "cannot fork: %s", strerror(errno));
	} else {
		/* The answer is smaller than PIPE_BUF, so it arrives whole or not at all. */
		while ((got = read(ends[0], answer, sizeof(*answer))) < 0 && errno == EINTR)
			;
		if (got != sizeof(*answer))
			snprintf(answer->why, sizeof(answer->why), "the process that opens the volume has died");
		while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
			;
	}
	close(ends[0]);
}

/* Returns the state of the volume with these options, and asks for it first if it is not known. */
static struct source *source_of(const struct engine_options *o)
{
	char *key = key_of(o);
	struct answer answer;
	struct source *source;

	for (source = sources; source; source = source->next) {
		if (!strcmp(source->key, key)) {
			free(key);
			return source;
		}
	}
	if (used_by) {
		/* A child of this process could not use the library. */
		memset(&answer, 0, sizeof(answer));
		if (used_by == getpid())
			look(o, &answer);
		else
			snprintf(answer.why, sizeof(answer.why), MIXED);
	} else {
		look_in_child(o, &answer);
	}
	if (!answer.is_open) {
		log_err("hcablk: %s\n", answer.why);
		free(key);
		return NULL;
	}
	source = allocated(calloc(1, sizeof(*source)));
	source->key = key;
	source->size = answer.size;
	source->block_size = answer.block_size;
	source->read_only = answer.read_only;
	source->next = sources;
	sources = source;
	return source;
}

static int engine_setup(struct thread_data *td)
{
	const struct engine_options *o = td->eo;
	struct source *source;

	if (!is_this_fio(td))
		return 1;
	if (!o->address || !o->volume) {
		log_err("hcablk: %s is not set: address=ADDRESS volume=NAME\n", o->address ? "volume" : "address");
		return 1;
	}
	if (td->o.nr_files != 1) {
		log_err("hcablk: a job has one volume: omit nrfiles, and name at most one file\n");
		return 1;
	}
	pthread_mutex_lock(&lock);
	if (!sources)
		are_threads = td->o.use_thread;
	if (are_threads == !!td->o.use_thread) {
		source = source_of(o);
	} else {
		log_err("hcablk: " MIXED "\n");
		source = NULL;
	}
	/* With create_serialize=0 the job has begun already. */
	if (source && td->o.use_thread && !td->io_ops_data)
		source->waiting++;
	pthread_mutex_unlock(&lock);
	if (!source)
		return 1;
	if (source->read_only && (td_write(td) || td_trim(td))) {
		log_err("hcablk: volume %s is read-only\n", o->volume);
		return 1;
	}
	if (td_min_bs(td) % source->block_size) {
		log_err("hcablk: bs must be a multiple of the volume's block size, %u\n", source->block_size);
		return 1;
	}
	td->files[0]->real_file_size = source->size;
	td->files[0]->filetype = FIO_TYPE_BLOCK;
	fio_file_set_size_known(td->files[0]);
	return 0;
}

/* Returns the number of threads with these options that have not begun yet; at least this one. */
static unsigned int begin_one(const char *key)
{
	struct source *source;
	unsigned int waiting = 0;

	for (source = sources; source; source = source->next) {
		if (!strcmp(source->key, key) && source->waiting)
			waiting = source->waiting--;
	}
	return waiting ?: 1;
}

/* Takes a queue of an open volume, if it is shared and has one left; otherwise opens a volume. */
static bool begin(struct thread_data *td, struct job *job)
{
	const struct engine_options *o = td->eo;
	char *key = key_of(o), why[512];
	struct shared *shared;
	unsigned int queues = begin_one(key);

	for (shared = td->o.use_thread ? volumes : NULL; shared; shared = shared->next) {
		if (strcmp(shared->key, key))
			continue;
		job->queue = hcablk_queue_take(shared->volume);
		if (job->queue) {
			shared->users++;
			job->shared = shared;
			free(key);
			return true;
		}
	}
	used_by = getpid();
	shared = allocated(calloc(1, sizeof(*shared)));
	if (!td->o.use_thread)
		queues = 1;
	shared->volume = open_volume(o, queues < QUEUES_MAX ? queues : QUEUES_MAX, why, sizeof(why));
	if (!shared->volume) {
		log_err("hcablk: %s\n", why);
		free(shared);
		goto fail;
	}
	job->queue = allocated(hcablk_queue_take(shared->volume));
	shared->key = key;
	shared->users = 1;
	shared->next = volumes;
	volumes = shared;
	job->shared = shared;
	return true;
fail:
	free(key);
	return false;
}

static int engine_init(struct thread_data *td)
{
	struct job *job = allocated(calloc(1, sizeof(*job)));
	bool has_begun;

	/* Checked without the lock: a thread of the parent may have held it when this process was forked. */
	if (used_by && used_by != getpid()) {
		log_err("hcablk: " MIXED "\n");
		free(job);
		return 1;
	}
	job->depth = td->o.iodepth;
	job->requests = allocated(calloc(job->depth, sizeof(*job->requests)));
	job->pieces = allocated(calloc(job->depth, sizeof(*job->pieces)));
	job->completions = allocated(calloc(job->depth, sizeof(*job->completions)));
	job->refused = allocated(calloc(job->depth, sizeof(*job->refused)));
	job->ended = allocated(calloc(job->depth, sizeof(*job->ended)));
	td->io_ops_data = job;
	pthread_mutex_lock(&lock);
	has_begun = begin(td, job);
	pthread_mutex_unlock(&lock);
	return has_begun ? 0 : 1;
}

static void engine_cleanup(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	struct shared **at, *shared;

	if (!job)
		return;
	hcablk_queue_free(job->queue);
	pthread_mutex_lock(&lock);
	shared = job->shared;
	if (shared && !--shared->users) {
		for (at = &volumes; *at != shared; at = &(*at)->next)
			;
		*at = shared->next;
		hcablk_close(shared->volume);
		free(shared->key);
		free(shared);
	}
	pthread_mutex_unlock(&lock);
	free(job->requests);
	free(job->pieces);
	free(job->completions);
	free(job->refused);
	free(job->ended);
	free(job);
}

static int engine_iomem_alloc(struct thread_data *td, size_t size)
{
	struct job *job = td->io_ops_data;

	job->memory = hcablk_memory_new(job->shared->volume, NULL, size);
	if (!job->memory) {
		log_err("hcablk: cannot register %zu bytes: %s (see `ulimit -l`)\n", size, hcablk_error());
		return 1;
	}
	job->data = td->orig_buffer = hcablk_memory_data(job->memory);
	return 0;
}

static void engine_iomem_free(struct thread_data *td)
{
	struct job *job = td->io_ops_data;

	if (!job || !job->memory)
		return;
	if (hcablk_memory_free(job->memory)) {
		/* Requests have not ended, since the job is ended by force. */
		hcablk_queue_free(job->queue);
		job->queue = NULL;
		hcablk_memory_free(job->memory);
	}
	job->memory = NULL;
}

static enum fio_q_status engine_queue(struct thread_data *td, struct io_u *io_u)
{
	const struct engine_options *o = td->eo;
	struct job *job = td->io_ops_data;
	struct hcablk_request *request;
	struct hcablk_piece *piece;

	fio_ro_check(td, io_u);
	if (job->pending == job->depth)
		return FIO_Q_BUSY;
	request = &job->requests[job->pending];
	piece = &job->pieces[job->pending];
	memset(request, 0, sizeof(*request));
	request->flags = o->events ? HCABLK_EVENT : 0;
	request->offset = io_u->offset;
	request->user_data = (uintptr_t)io_u;
	switch (io_u->ddir) {
	case DDIR_READ:
	case DDIR_WRITE:
		request->op = io_u->ddir == DDIR_READ ? HCABLK_READ : HCABLK_WRITE;
		if (io_u->ddir == DDIR_WRITE && td->o.sync_io)
			request->flags |= HCABLK_FUA;
		piece->memory = job->memory;
		piece->offset = (char *)io_u->xfer_buf - job->data;
		piece->length = io_u->xfer_buflen;
		request->pieces = piece;
		request->count = 1;
		break;
	case DDIR_TRIM:
		request->op = HCABLK_DISCARD;
		request->length = io_u->xfer_buflen;
		break;
	case DDIR_SYNC:
	case DDIR_DATASYNC:
		request->op = HCABLK_FLUSH;
		request->offset = 0;
		break;
	default:
		io_u->error = EOPNOTSUPP;
		return FIO_Q_COMPLETED;
	}
	job->pending++;
	return FIO_Q_QUEUED;
}

/* Submits what was queued: the library rings one doorbell for all of it. */
static int engine_commit(struct thread_data *td)
{
	struct job *job = td->io_ops_data;
	unsigned int at = 0, n;
	struct timespec now;

	if (!job->pending)
		return 0;
	while (at < job->pending) {
		int submitted = hcablk_submit(job->queue, job->requests + at, job->pending - at);

		if (submitted > 0) {
			at += submitted;
			continue;
		}
		struct io_u *io_u = (struct io_u *)(uintptr_t)job->requests[at++].user_data;

		io_u->error = submitted ? -submitted : EIO;
		if (!job->is_explained)
			log_err("hcablk: %s of %llu bytes at %llu: %s\n", io_ddir_name(io_u->ddir),
				io_u->xfer_buflen, io_u->offset, hcablk_error());
		job->is_explained = true;
		job->refused[job->nr_refused++] = io_u;
	}
	io_u_mark_submit(td, job->pending);
	if (fio_fill_issue_time(td)) {
		fio_gettime(&now, NULL);
		for (n = 0; n < job->pending; n++) {
			struct io_u *io_u = (struct io_u *)(uintptr_t)job->requests[n].user_data;

			io_u->issue_time = now;
			io_u_queued(td, io_u);
		}
		if (td->o.read_iolog_file)
			td->last_issue = now;
	}
	job->pending = 0;
	return 0;
}

/* Logs once why requests fail, if the library knows more than the error number. */
static void explain(struct job *job)
{
	struct hcablk_volume *volume = job->shared->volume;

	if (job->is_explained)
		return;
	job->is_explained = true;
	if (hcablk_ended(volume))
		log_err("hcablk: the volume has ended: %s\n", hcablk_error());
	else if (hcablk_has_lost_writes(volume))
		log_err("hcablk: the target has lost acknowledged writes that were not flushed\n");
}

/* Adds requests that have ended to the `found` ones, up to `most` in total; returns the new total. */
static unsigned int collect(struct job *job, bool sleeps, unsigned int found, unsigned int most, int ms)
{
	int count, n;

	if (sleeps)
		count = hcablk_wait(job->queue, job->completions, most - found, ms);
	else
		count = hcablk_poll(job->queue, job->completions, most - found);
	for (n = 0; n < count; n++) {
		struct io_u *io_u = (struct io_u *)(uintptr_t)job->completions[n].user_data;

		io_u->error = -job->completions[n].error;
		if (io_u->error)
			explain(job);
		job->ended[found++] = io_u;
	}
	return found;
}

static int engine_getevents(struct thread_data *td, unsigned int least, unsigned int most, const struct timespec *limit)
{
	const struct engine_options *o = td->eo;
	struct job *job = td->io_ops_data;
	unsigned int found = 0, before;

	if (most > job->depth)
		most = job->depth;
	while (job->nr_refused && found < most)
		job->ended[found++] = job->refused[--job->nr_refused];
	/* fio passes a limit of 0 when it needs no request to end; it uses no other limit. */
	if (least == 0 || limit)
		return found < most ? collect(job, false, found, most, 0) : found;
	while (found < least) {
		before = found;
		found = collect(job, o->events, found, most, -1);
		/* A wait without limit returns nothing only if no request is in flight. */
		if (o->events && found == before) {
			log_err("hcablk: %u requests are missing\n", least - found);
			return -EIO;
		}
	}
	return found;
}

static struct io_u *engine_event(struct thread_data *td, int event)
{
	struct job *job = td->io_ops_data;

	return job->ended[event];
}

/* There is no file, but fio requires these functions. */
static int engine_open_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

static int engine_close_file(struct thread_data *td, struct fio_file *f)
{
	return 0;
}

struct ioengine_ops ioengine = {
	.name = "hcablk",
	.version = FIO_IOOPS_VERSION,
	.flags = FIO_DISKLESSIO | FIO_NOEXTEND | FIO_NODISKUTIL | FIO_NO_OFFLOAD | FIO_ASYNCIO_SETS_ISSUE_TIME,
	.setup = engine_setup,
	.init = engine_init,
	.cleanup = engine_cleanup,
	.iomem_alloc = engine_iomem_alloc,
	.iomem_free = engine_iomem_free,
	.queue = engine_queue,
	.commit = engine_commit,
	.getevents = engine_getevents,
	.event = engine_event,
	.open_file = engine_open_file,
	.close_file = engine_close_file,
	.options = options,
	.option_struct_size = sizeof(struct engine_options),
};
