/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* What the subcommands share. One file a subcommand; main.c holds their table. */

#include <stddef.h>
#include <stdio.h>
#include <sys/types.h>

#include "nettrace/nettrace.h"

#define EXIT_DONE   0
#define EXIT_FAILED 1
#define EXIT_USAGE  2

/* For the end of a verb's help. */
#define CLI_EXIT_HELP "Exit status: 0 done, 1 failed, 2 wrong usage.\n"
/* For a table of options, where the process may be given as -p PID, too. */
#define CLI_PID_OPTION \
	{ \
		"pid", required_argument, NULL, 'p' \
	}
#define CLI_PID_HELP "  -p, --pid PID           the process, instead of the argument\n"

int cli_ps(int argc, char **argv);
int cli_map(int argc, char **argv);
int cli_decode(int argc, char **argv);
int cli_resolve(int argc, char **argv);
int cli_inject(int argc, char **argv);
int cli_image(int argc, char **argv);
int cli_perf(int argc, char **argv);
int cli_methods(int argc, char **argv);
int cli_modules(int argc, char **argv);
int cli_watch(int argc, char **argv);
int cli_filter(int argc, char **argv);

/* "clrsym VERB: ..." and a hint at --help on stderr; returns EXIT_USAGE. */
int cli_usage_error(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Only the hint: getopt has said what is wrong. */
int cli_usage_hint(const char *verb);
/* A process id that was typed. Returns 0, or EXIT_USAGE (said). */
int cli_parse_pid(const char *verb, const char *s, pid_t *pidp);
/*
 * The one process of a verb: -p's argument (NULL: there was none) or the only one of the n plain
 * arguments. Returns 0, or EXIT_USAGE (said).
 */
int cli_only_pid(const char *verb, const char *option, int n, char **args, pid_t *pidp);
/* Says that n processes (the first of them is named) may not be looked at; nothing if n is 0. */
void cli_say_denied(unsigned int n, pid_t first);
/* Says whether everything printed has reached stdout (a full disk, a closed pipe). */
int cli_flush(void);
/* The exit status at the end of a verb: r is 0, -errno (said here), or positive: said already. */
int cli_end(int r);

/*
 * Reads a whole trace file (or stdin for "-") piece by piece into fn until its end, or until fn
 * returns non-zero. Returns 0, -errno, or what fn returned.
 */
int cli_read_trace(const char *path, int (*fn)(void *data, const void *bytes, size_t n),
		   void *data);

/*
 * At the end of a trace: says on stderr what was wrong with it. Returns 0 when all that came was
 * read (a stream that just stops is only warned of), else an enum nettrace_error.
 */
int cli_trace_end(const char *path, struct nettrace *nt);
