/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* A recording of perf, from what was read to what is written: shared by inject and perf. */

#include "cli/source.h"
#include "inject/inject.h"
#include "perfdata/clock.h"

struct recording_options {
	const char *in, *out;    /* "-": a pipe */
	const char *buildid_dir; /* NULL: perf's own */
	struct inject_options inject;
	bool dry_run;
	bool no_code; /* images without code bytes */
	bool attach;  /* to processes that no source is for, and that a daemon does not have */
	bool strict;  /* fails when there is managed code and none of it can be named */
	/* the recording's clock, measured while it was made; n = 0: measured now */
	struct perfdata_clock_track track;
};

/* A file without a name, for what comes through a pipe. Returns the fd or -errno. */
int recording_spool_new(void);

/* Does all of it and says on stderr how it went. Returns an exit status. */
int recording_inject(struct sources *set, const struct recording_options *opts);
