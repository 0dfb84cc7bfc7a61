// SPDX-License-Identifier: GPL-2.0
/*
 * Faults of verbs that tests ask for, where the kernel has fault injection; soft-RoCE and
 * soft-iWARP have none of their own. Each has the files of the kernel's framework in
 * /sys/kernel/debug/hcablk_faults.
 *
 * C: Documentation/fault-injection/fault-injection.rst
 */
#include <linux/debugfs.h>
#include <linux/fault-inject.h>

#include "helpers.h"

#ifdef CONFIG_FAULT_INJECTION_DEBUG_FS

static DECLARE_FAULT_ATTR(fail_post);
static DECLARE_FAULT_ATTR(fail_map);
static struct dentry *faults;

void hcablk_c_faults_create(void)
{
	fail_post.verbose = 0;
	fail_map.verbose = 0;
	faults = debugfs_create_dir("hcablk_faults", NULL);
	fault_create_debugfs_attr("post", faults, &fail_post);
	fault_create_debugfs_attr("map", faults, &fail_map);
}

void hcablk_c_faults_remove(void)
{
	debugfs_remove(faults);
}

bool hcablk_c_fail_post(void)
{
	return should_fail(&fail_post, 1);
}

bool hcablk_c_fail_map(void)
{
	return should_fail(&fail_map, 1);
}

#endif
