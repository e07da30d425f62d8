/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The command line that the verbs about one process's code have in common: methods, modules, watch.
 */

#include <stdbool.h>
#include <sys/types.h>

#include "cli/daemon.h"

struct listing_args {
	bool json;
	bool retired; /* where the verb has it */
	pid_t pid;
};

/*
 * Takes "[--json] [--retired] [-p] PID" and the daemon's options. Returns -1 to go on, or the exit
 * status of a verb that is over: help was wanted, or something is wrong (said).
 */
int listing_take(const char *verb, int argc, char **argv, bool has_retired, void (*help)(void),
		 struct daemon_options *daemon, struct listing_args *args);
