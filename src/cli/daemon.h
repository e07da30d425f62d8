/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The way from a subcommand to the daemon: the options about it that every one of them has, the
 * connection, and the calls that more than one of them makes.
 */

#include <getopt.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/util.h"
#include "query/client.h"
#include "query/export.h"

struct daemon_options {
	const char *socket; /* NULL: the usual places */
	bool never;
	uint32_t timeout_ms; /* of every call; 0: longer than the longest that may be asked for */
};

enum daemon_option {
	DAEMON_OPT_SOCKET = 768, /* apart from a verb's own and those of attaching and naming */
	DAEMON_OPT_NEVER,
};

/* For a table of struct option. */
#define DAEMON_OPTIONS \
	{ "socket", required_argument, NULL, DAEMON_OPT_SOCKET }, \
	{ \
		"no-daemon", no_argument, NULL, DAEMON_OPT_NEVER \
	}

/* pad: by what a verb's own options need more room than others'. */
#define DAEMON_HELP_OF(pad, never) \
	"      --socket PATH       " pad "clrsymd's query socket (" QUERY_DEFAULT_SOCKET ")\n" \
	"      --no-daemon         " pad "do not ask clrsymd" never "\n"
#define DAEMON_OPTIONS_HELP DAEMON_HELP_OF("", ": attach to the process")
#define DAEMON_HELP_WIDE    DAEMON_HELP_OF("    ", ": attach to the process")
#define DAEMON_HELP_MANY    DAEMON_HELP_OF("", ": attach to the processes")
#define DAEMON_HELP_ASK     DAEMON_HELP_OF("", "")

/* Takes one of the options; false when it is none of them. arg is borrowed. */
bool daemon_option_take(struct daemon_options *opts, int option, const char *arg);

/*
 * Connects. 0 with *outp NULL: none answers, or it is not to be asked. -errno has been said on
 * stderr: -EACCES there is one that is not for us, anything else it is broken.
 */
int daemon_open(const struct daemon_options *opts, struct query_client **outp);
/* Has it hung up? Asks nothing of it. */
bool daemon_is_gone(const struct query_client *c);
/* Did the call fail because the caller may not ask about that process? */
bool daemon_denies(const struct query_client *c, int r);
/* Why a call failed: its -errno, or the daemon's error. For people; valid until the next one. */
const char *daemon_error_text(struct query_client *c, int r);

/* -- calls: 0, -errno, or QUERY_E_REMOTE -------------------------------------------------- */

/* An element of ListProcesses, as far as it is of use here. */
struct daemon_process {
	pid_t pid;      /* as we see it; 0: we do not */
	uint64_t start; /* ticks: with the pid its identity */
	uint64_t known_until;
	bool known; /* its code is, as far as it will be */
	bool stuck; /* the daemon could not attach, and tries again later */
	bool ended;
	char comm[64], runtime[64]; /* for people */
};

/*
 * All that it knows, the youngest process first; *itemsp is owned. An element that makes no sense
 * is left out: a newer daemon may say what we do not understand. -EACCES: nothing is for us.
 */
int daemon_list(struct query_client *c, struct daemon_process **itemsp, size_t *np);
/* For the caller alone; hold_s after the last use it ends. */
int daemon_attach(struct query_client *c, pid_t pid, uint32_t hold_s, uint32_t wait_ms,
		  struct daemon_process *process);
int daemon_export(struct query_client *c, pid_t pid, uint64_t start, bool code,
		  struct export **outp);
/* *replyp: files and methods. */
int daemon_write_map(struct query_client *c, pid_t pid, uint64_t start, json_t **replyp);
