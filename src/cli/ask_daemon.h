/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* The part of ask that talks to the daemon; for ask.c only. Results are those of ask.h. */

#include "cli/ask.h"

/* Makes sure that the daemon has the process. */
int ask_daemon_open(struct ask_process *p, bool quiet);
int ask_daemon_resolve(struct ask_process *p, const struct ask_item *items, size_t n,
		       uint32_t wait_ms,
		       int (*fn)(void *data, size_t i, const struct ask_answer *a), void *data);
int ask_daemon_methods(struct ask_process *p, bool retired,
		       int (*fn)(void *data, const struct query_method *m), void *data);
int ask_daemon_modules(struct ask_process *p, int (*fn)(void *data, const struct ask_module *m),
		       void *data);
int ask_daemon_watch(struct ask_process *p,
		     int (*fn)(void *data, const char *change, const struct query_method *m),
		     void *data);
