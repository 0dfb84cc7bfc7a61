# SPDX-License-Identifier: GPL-2.0
#
# The entry point. The kernel modules themselves are described in Kbuild; the
# work is done by the scripts in scripts/, mostly inside a build root (Debian
# with a toolchain, kernels and QEMU) that they make in the cache folder.

include scripts/supported-kernels

# The folder of the build root, the prepared kernel trees and downloads.
HCABLK_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/hcablk
export HCABLK_CACHE

# Variables for the command line; the scripts read them from the environment.
export SERIES KDIR KREL JOBS V T D INPUT DESTDIR PREFIX HCABLK_MIRROR HCABLK_KEYRING HCABLK_FIO_SOURCE QUICK COUNT LINK SAVE CONNECT REPEAT N

# The scripts run other makes, which must not get this one's flags.
unexport MAKEFLAGS MFLAGS

.DEFAULT_GOAL := modules
.PHONY: modules tools fio-engine all help test test-all test-debug test-injected test-machine test-dkms test-upgrade test-hostile test-whole soak soak-nvme demo \
	pictures experiments bench bench-profile host-test fuzz lint fmt \
	fmt-check clippy shellcheck dialect docs-check docs-tables tests-check tests-list injected-fit next-turn root kernels update install uninstall deb clean distclean shell doc

modules: ## build the modules for all supported kernels (the default)
	@scripts/build-modules

tools: ## build the hcablk command, the library for user space with its examples, and fio's engine if the archive has fio's source
	@scripts/cargo userspace-tools "tools: hcablk" build --release --lib --bins --examples
	@scripts/fio-engine --if-possible

fio-engine: ## like `make tools`, but fail if fio's engine cannot be built
	@scripts/cargo userspace-tools "tools: hcablk" build --release --lib --bins --examples
	@scripts/fio-engine

all: modules tools ## build the modules and the tools

test: modules tools ## boot test guests and run the heart of the tests, 15 minutes; T=NAME runs one test or feature
	@scripts/with-guests tests/run.sh $(or $(T),heart)

test-all: modules tools ## run all tests, an hour and more
	@scripts/with-guests tests/run.sh all

test-debug: tools ## run the same tests on a kernel with all debug checks (built once, about 15 minutes)
	@DEBUG=1 scripts/build-modules
	@DEBUG=1 scripts/with-guests tests/run.sh $(T)

test-injected: tools ## inject bugs and check that the tests find each
	@tests/debug/injected-bugs.sh $(T)

test-machine: deb ## boot whole Debian machines, install the packages and use them as an administrator would
	@MACHINE=1 scripts/with-guests tests/run.sh $(or $(T),machine)

test-dkms: deb ## install the package hcablk-dkms on a Debian with a kernel's headers, and test the modules that it builds
	@scripts/with-guests tests/dkms.sh $(T)

test-upgrade: modules tools ## upgrade guests one after the other under load from the build of OLD=COMMIT (or FOLDER of modules)
	@HCABLK_OTHER=$$(scripts/old-build $(OLD)) && export HCABLK_OTHER && scripts/with-guests tests/run.sh $(or $(T),upgrade)

test-hostile: modules tools ## nightly: run the tests of feature hostile with all of their messages, from seed HCABLK_SEED=N
	@HCABLK_WHOLE=1 HCABLK_SEED=$${HCABLK_SEED:-$$(scripts/commit-seed)} scripts/with-guests tests/run.sh hostile

test-whole: modules tools ## nightly: run all tests, with all values and shapes, and random data from seed HCABLK_SEED=N
	@HCABLK_WHOLE=1 HCABLK_SEED=$${HCABLK_SEED:-$$(scripts/commit-seed)} scripts/with-guests tests/run.sh all

soak: modules tools ## break connections until N=10000 requests were issued again, or for MINUTES=60
	@if [ -n "$(MINUTES)" ]; then HCABLK_MINUTES=$(MINUTES) scripts/with-guests tests/run.sh soak/faults; \
	else HCABLK_REISSUES=$${N:-10000} scripts/with-guests tests/run.sh fencing/ghost-writes failover/ghost-writes; fi

soak-nvme: modules tools ## cut paths of nvme-rdma, at most N=20 times, until a ghost write is seen
	@HCABLK_REISSUES=$${N:-20} scripts/with-guests tests/run.sh soak/nvme

pictures: modules tools ## make the pictures of the documents, docs/pictures, from a run in guests
	@scripts/with-guests tests/pictures.sh

experiments: modules tools ## make the pages of `hcablk bench`, build/experiments, from a run in guests
	@scripts/with-guests tests/experiments.sh

demo: ## run a demonstration: three machines share one disk with OCFS2; builds only its inputs
	@scripts/demo

bench: modules tools ## measure instructions per I/O, ours and the competitors'; T='ROW…' for some rows, QUICK=1 for fewer
	@scripts/with-guests bench/run.sh $(T)

bench-profile: modules tools ## profile the instructions of an I/O; T='ROW…' names the rows
	@PROFILE=1 scripts/with-guests bench/run.sh $(T)

host-test: ## run the unit tests of the pure logic, on this machine, in seconds
	@scripts/host-test

fuzz: ## fuzz the decoders, guided by coverage; T=SECONDS for each (60), D=NAME for one
	@scripts/fuzz

lint: fmt-check clippy shellcheck dialect docs-check tests-check injected-fit ## run every check that needs no guest

fmt: ## format the Rust sources with the kernel's settings
	@scripts/lint fmt

fmt-check: ## check the formatting of the Rust sources
	@scripts/lint fmt-check

clippy: ## run Rust's lints, the kernel's for the modules
	@scripts/lint clippy

shellcheck: ## lint the shell scripts
	@scripts/lint shellcheck

dialect: ## count the phrases that scripts/dialect lists; none may be added
	@scripts/lint dialect

docs-check: ## find dead links, broken tables and excessive lines in the documents
	@scripts/lint docs

docs-tables: ## write the tables of files in docs/design/overview.md, from the first sentence of each
	@scripts/lint docs-tables

tests-check: ## check the headers of tests, and the lengths of the heart and of each turn of CI
	@scripts/lint tests

tests-list: ## write the list of tests in tests/README.md, from their headers
	@scripts/lint tests-list

injected-fit: ## check that the bugs of test-injected still fit the source
	@tests/debug/injected-bugs.sh --fit

next-turn: ## begin the next turn of CI, and commit the record of the last one (see tests/README.md)
	@scripts/next-turn

doc: ## build the reference of the core crate as HTML
	@DOC=1 scripts/build-modules && ls build/*/doc/hcablk_core/index.html

root: ## build the build root and the kernel trees, so that later runs need no network
	@scripts/build-root && scripts/prepare

update: ## look for newer kernels and packages, renew the build root
	@scripts/build-root --update && scripts/prepare

kernels: ## list the kernels in the build root
	@scripts/build-root && scripts/prepare --list

shell: ## run a shell in the build root
	@scripts/build-root && scripts/in-root -- bash -i

deb: all ## make Debian packages of the command and the modules, in build/deb
	@scripts/deb

install: ## install modules and command (see DESTDIR, PREFIX, KREL)
	@scripts/install

uninstall: ## remove the files of `make install` with the same DESTDIR, PREFIX and KREL; the configuration stays
	@scripts/uninstall

clean: ## remove what was built from this checkout
	rm -rf build

distclean: clean ## like `make clean`, and remove the cache folder, which all checkouts share
	@scripts/drop-cache

help: ## print this list
	@echo "hcablk: a shared block device over RDMA. Kernels: $(KERNEL_MIN).x to $(KERNEL_MAX).x of Debian."
	@echo
	@echo "Targets:"
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/  \1|\2/p' $(firstword $(MAKEFILE_LIST)) | \
		while IFS='|' read -r t d; do printf '  %-13s %s\n' $$t "$$d"; done
	@echo
	@echo "Variables (make NAME=VALUE):"
	@echo "  SERIES=7.2        only this kernel series"
	@echo "  KDIR=PATH         build the modules on this host against a prepared kernel tree,"
	@echo "                    without a build root"
	@echo "  T=FEATURE/NAME    for test: one test; a FEATURE, or a set (see tests/README.md)"
	@echo "  T='ROW…'          for bench: only these rows (see bench/README.md)"
	@echo "  LINK=two          for bench: two guests and a network, in real time; hca, hca-iommu: HCAs of the tests' own"
	@echo "  SAVE=FILE         for bench: also write the results to this file"
	@echo "  HCABLK_RDMA=siw   for test and test-debug: soft-iWARP instead of soft-RoCE"
	@echo "  HCABLK_RDMA=hca   for test and test-debug: two devices of the tests' own in one guest"
	@echo "  HCABLK_RDMA=rxe-large  for test: soft-RoCE with memory regions that hold 4 MiB"
	@echo "  HCABLK_PARAMETERS='MODULE.NAME=VALUE…'  for test and test-debug: the guests' module"
	@echo "                    parameters, such as hcablk_target.force_mr=1"
	@echo "  OLD=COMMIT        for test-upgrade: the older build; default: the first one with protocol 3"
	@echo "  D=NAME INPUT=FILE for fuzz: one decoder; repeat one input"
	@echo "  HCABLK_LANES=N    for test and test-debug: sets of guests that run tests side by side;"
	@echo "                    3 for a set, if there is memory; 1 for named tests and on the debug kernel"
	@echo "  V=1               show the output of every step"
	@echo "  JOBS=N            parallel jobs, default: all CPUs"
	@echo "  KREL=RELEASE      for install and uninstall: the kernel, default: the running one"
	@echo "  DESTDIR=, PREFIX= for install and uninstall: default none, /usr/local"
	@echo "  HCABLK_CACHE=PATH the folder of the build root; now $(HCABLK_CACHE)"
	@echo "  HCABLK_FIO_SOURCE=DIR  build fio's engine for the fio whose sources are there; default: those"
	@echo "                    of Debian's package, from the archive"
	@echo "  HCABLK_MIRROR=URL a Debian mirror, default http://deb.debian.org/debian"
	@echo "  HCABLK_KEYRING=F  keys to check Debian's archive with, if this host's are too old"
