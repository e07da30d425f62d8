/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym ps: every .NET process, with the answer of its diagnostic port or the reason why it has
 * none. All are asked at once; one that does not answer costs the others nothing. Where a clrsymd
 * answers, it also tells which of them it is attached to.
 */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <string.h>

#include <jansson.h>

#include "base/caps.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/utf.h"
#include "cli/daemon.h"
#include "cli/event.h"
#include "target/call.h"

/* ps is for people: it waits less than an attach would. */
#define PS_DEADLINE_NS SEC_NS(2)

struct row {
	struct ps *ps;
	struct row *next;
	struct proc *proc;
	struct proc_socket_options socket_opts;
	struct call call;
	enum diagipc_command asked;
	enum proc_dotnet kind;
	char runtime[64];
	char why[512]; /* empty: it can be attached */
	char *command;
	const char *daemon; /* what a daemon does with it; NULL: nothing */
};

struct ps {
	struct loop *loop;
	struct row *rows, **tail;
	unsigned int open; /* calls under way */
	unsigned int denied;
	int error;
	struct daemon_options daemon_opts;
	bool has_daemon;
};

static void row_done(struct row *row)
{
	call_cancel(&row->call);
	if (--row->ps->open == 0)
		loop_stop(row->ps->loop, 0);
}

static void row_answered(struct call *call, int result)
{
	struct row *row = container_of(call, struct row, call);
	struct diagipc_process_info info = { 0 };

	if (result == CALL_E_REFUSED && call->reply.hresult == DIAGIPC_UNKNOWN_COMMAND) {
		snprintf(row->runtime, sizeof(row->runtime), "%s",
			 row->asked == DIAGIPC_PROCESS_INFO ? "3.x" : "5.x");
	} else if (result) {
		snprintf(row->why, sizeof(row->why), "%s", call_error_text(call, result));
	} else if (diagipc_parse_process_info(&call->reply, row->asked, &info) == 0) {
		if (info.command_line && !row->command)
			row->command = strdup(info.command_line);
		if (info.version_text) {
			size_t len = strlen(info.version_text);

			/* not cut inside a character */
			len = utf8_cut(info.version_text, len, sizeof(row->runtime) - 1);
			memcpy(row->runtime, info.version_text, len);
			row->runtime[len] = '\0';
		}
		diagipc_process_info_deinit(&info);
		if (row->asked == DIAGIPC_PROCESS_INFO) {
			row->asked = DIAGIPC_PROCESS_INFO2;
			if (call_start(call, row->asked, NULL, PS_DEADLINE_NS) == 0)
				return;
			snprintf(row->why, sizeof(row->why), "out of memory");
		}
	} else {
		snprintf(row->why, sizeof(row->why),
			 "its answer is not of the diagnostic protocol");
	}
	row_done(row);
}

/* Is it a .NET process? Then a row. Processes that exit meanwhile are none. */
static int ps_process(void *data, pid_t pid)
{
	struct ps *ps = data;
	_cleanup_(proc_closep) struct proc *proc = NULL;
	enum proc_dotnet kind = PROC_NOT_DOTNET;
	struct row *row;
	int r;

	r = proc_open(pid, &proc);
	if (r == 0)
		r = proc_detect_dotnet(proc, &kind);
	if (r == PROC_E_DENIED)
		ps->denied++;
	if (r < 0 && r != -ESRCH && r != -ENOENT)
		ps->error = r;
	if (r || kind == PROC_NOT_DOTNET)
		return 0;
	row = calloc(1, sizeof(*row));
	if (!row)
		return -ENOMEM;
	row->ps = ps;
	row->kind = kind;
	row->proc = TAKE_PTR(proc);
	row->asked = DIAGIPC_PROCESS_INFO;
	call_init(&row->call, ps->loop, row->proc, &row->socket_opts, row_answered);
	*ps->tail = row;
	ps->tail = &row->next;
	r = call_start(&row->call, row->asked, NULL, PS_DEADLINE_NS);
	if (r < 0)
		return r;
	ps->open++;
	return 0;
}

/* Who is attached to by the daemon, if there is one. That it cannot be asked is no reason to stop.
 */
static int ps_ask_daemon(struct ps *ps)
{
	_cleanup_(query_client_freep) struct query_client *client = NULL;
	_cleanup_free_ struct daemon_process *items = NULL;
	struct row *row;
	size_t i, n = 0;
	int r;

	if (daemon_open(&ps->daemon_opts, &client) < 0 || !client)
		return 0;
	r = daemon_list(client, &items, &n);
	if (r == -ENOMEM)
		return r;
	if (r) {
		log_warn("%s", daemon_error_text(client, r));
		return 0;
	}
	ps->has_daemon = true;
	for (row = ps->rows; row; row = row->next)
		for (i = 0; i < n; i++)
			if (items[i].pid == row->proc->pid && items[i].start == row->proc->start &&
			    !items[i].ended)
				row->daemon = items[i].known   ? "attached"
					      : items[i].stuck ? "waiting"
							       : "attaching";
	return 0;
}

static void ps_deinit(struct ps *ps)
{
	struct row *row, *next;

	for (row = ps->rows; row; row = next) {
		next = row->next;
		call_deinit(&row->call);
		proc_close(row->proc);
		free(row->command);
		free(row);
	}
	loop_free(ps->loop);
}

/* The command line that the runtime gave; else the kernel's short name, which may be any bytes. */
static const char *row_command(const struct row *row)
{
	if (row->command)
		return escape_terminal(row->command, strnlen(row->command, 200));
	return escape_terminal(row->proc->comm, strlen(row->proc->comm));
}

static void ps_print_json(const struct row *row)
{
	json_t *o = json_pack("{s:i, s:i, s:s*, s:b, s:s*, s:s*, s:s}", "pid", (int)row->proc->pid,
			      "inner_pid", (int)row->proc->inner_pid, "runtime",
			      row->runtime[0] ? row->runtime : NULL, "attachable", !row->why[0],
			      "reason", row->why[0] ? row->why : NULL, "daemon", row->daemon,
			      "command", row->command ? row->command : row_command(row));

	if (!o)
		return;
	json_dumpf(o, stdout, EVENT_JSON_FLAGS);
	putchar('\n');
	json_decref(o);
}

static void ps_print(const struct row *row)
{
	printf("%7d  %-10s  %-6s  ", (int)row->proc->pid,
	       row->runtime[0] ? escape_terminal(row->runtime, strlen(row->runtime)) : "?",
	       row->why[0] ? "no" : "yes");
	if (row->ps->has_daemon)
		printf("%-9s  ", row->daemon ? row->daemon : "-");
	printf("%s\n", row_command(row));
	if (row->why[0])
		printf("         %s\n", row->why);
}

static void help(void)
{
	printf("Usage: clrsym ps [OPTION]...\n"
	       "Lists the .NET processes of this machine: who can be attached, who cannot and "
	       "why;\n"
	       "and, if clrsymd answers, who it is attached to.\n\n"
	       "      --json              one JSON object a line\n" DAEMON_OPTIONS_HELP);
}

int cli_ps(int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		DAEMON_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(ps_deinit) struct ps ps = { 0 };
	const struct row *row;
	bool json = false;
	int c, r;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) >= 0) {
		if (daemon_option_take(&ps.daemon_opts, c, optarg))
			continue;
		switch (c) {
		case 'j': json = true; break;
		case 'h': help(); return cli_flush();
		default: return cli_usage_hint("ps");
		}
	}
	if (optind != argc)
		return cli_usage_error("ps", "no arguments");
	ps.tail = &ps.rows;
	r = loop_new(&ps.loop);
	if (r == 0)
		r = proc_for_each(ps_process, &ps);
	if (r == 0 && ps.open)
		r = loop_run(ps.loop);
	if (r == 0)
		r = ps_ask_daemon(&ps);
	if (r < 0) {
		log_error("%s", strerror(-r));
		return EXIT_FAILED;
	}
	if (!json)
		printf("%7s  %-10s  %-6s  %s%s\n", "PID", "RUNTIME", "ATTACH",
		       ps.has_daemon ? "DAEMON     " : "", "COMMAND");
	for (row = ps.rows; row; row = row->next) {
		if (json)
			ps_print_json(row);
		else
			ps_print(row);
	}
	if (ps.denied)
		log_info("%u process%s may not be looked at%s", ps.denied,
			 ps.denied == 1 ? "" : "es", geteuid() ? " (run as root to see them)" : "");
	return cli_flush();
}
