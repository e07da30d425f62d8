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
	pid_t first_denied;
	int error;
	struct daemon_options daemon_opts;
	bool has_daemon, json;
	struct daemon_process *items; /* the daemon's */
	size_t n_items;
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
	if (r == PROC_E_DENIED && !ps->denied++)
		ps->first_denied = pid;
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
	const struct daemon_process *item;
	struct row *row;
	size_t i;
	int r;

	if (daemon_open(&ps->daemon_opts, &client) < 0 || !client)
		return 0;
	r = daemon_list(client, &ps->items, &ps->n_items);
	if (r == -ENOMEM)
		return r;
	if (r) {
		log_warn("%s", daemon_error_text(client, r));
		return 0;
	}
	ps->has_daemon = true;
	for (row = ps->rows; row; row = row->next)
		for (i = 0; i < ps->n_items; i++) {
			item = &ps->items[i];
			if (item->pid == row->proc->pid && item->start == row->proc->start &&
			    !item->ended)
				row->daemon = item->known   ? "attached"
					      : item->stuck ? "waiting"
							    : "attaching";
		}
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
	free(ps->items);
	loop_free(ps->loop);
}

/* What is printed of a process. */
struct shown {
	pid_t pid, inner_pid; /* inner_pid 0: not known */
	const char *runtime;  /* "": not known */
	const char *why;      /* it cannot be attached; "": it can */
	const char *daemon;   /* NULL: nothing */
	const char *command;
};

static void print_json(const struct shown *p)
{
	json_t *o =
		json_pack("{s:i, s:o*, s:s*, s:b, s:s*, s:s*, s:s}", "pid", (int)p->pid,
			  "inner_pid", p->inner_pid ? json_integer(p->inner_pid) : NULL, "runtime",
			  p->runtime[0] ? p->runtime : NULL, "attachable", !p->why[0], "reason",
			  p->why[0] ? p->why : NULL, "daemon", p->daemon, "command", p->command);

	if (!o)
		return;
	json_dumpf(o, stdout, EVENT_JSON_FLAGS);
	putchar('\n');
	json_decref(o);
}

static void print_text(const struct ps *ps, const struct shown *p)
{
	printf("%7d  %-10s  %-6s  ", (int)p->pid,
	       p->runtime[0] ? escape_terminal(p->runtime, strlen(p->runtime)) : "?",
	       p->why[0] ? "no" : "yes");
	if (ps->has_daemon)
		printf("%-9s  ", p->daemon ? p->daemon : "-");
	printf("%s\n", escape_terminal(p->command, strnlen(p->command, 200)));
	if (p->why[0])
		printf("         %s\n", p->why);
}

static void print(const struct ps *ps, const struct shown *p)
{
	if (ps->json)
		print_json(p);
	else
		print_text(ps, p);
}

static void print_row(const struct row *row)
{
	const char *comm = row->proc->comm; /* may be any bytes, which JSON does not take */
	struct shown shown = {
		.pid = row->proc->pid,
		.inner_pid = row->proc->inner_pid,
		.runtime = row->runtime,
		.why = row->why,
		.daemon = row->daemon,
		.command = row->command,
	};

	if (!row->command)
		shown.command = row->ps->json ? escape_terminal(comm, strlen(comm)) : comm;
	print(row->ps, &shown);
}

/* Of those the daemon still answers for, though they have exited. */
static void print_ended(const struct ps *ps)
{
	size_t i;

	for (i = 0; i < ps->n_items; i++) {
		const struct daemon_process *item = &ps->items[i];
		struct shown shown = {
			.pid = item->pid,
			.runtime = item->runtime,
			.why = "it has exited; clrsymd still names its code",
			.daemon = "ended",
			.command = item->comm,
		};

		if (item->ended && item->pid)
			print(ps, &shown);
	}
}

static void help(void)
{
	printf("Usage: clrsym ps [OPTION]...\n"
	       "Lists the .NET processes of this machine: who can be attached, who cannot and "
	       "why;\n"
	       "and, if clrsymd answers, who it is attached to.\n\n"
	       "      --json              one JSON object a line\n" DAEMON_HELP_ASK
	       "\nDAEMON: attached, attaching, waiting (it could not, and tries again), ended (the "
	       "process\n"
	       "has exited, and clrsymd still names its code). A line below says why a process "
	       "cannot be\nattached.\n" CLI_EXIT_HELP);
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
	int c, r;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) >= 0) {
		if (daemon_option_take(&ps.daemon_opts, c, optarg))
			continue;
		switch (c) {
		case 'j': ps.json = true; break;
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
	if (!ps.json)
		printf("%7s  %-10s  %-6s  %s%s\n", "PID", "RUNTIME", "ATTACH",
		       ps.has_daemon ? "DAEMON     " : "", "COMMAND");
	for (row = ps.rows; row; row = row->next)
		print_row(row);
	print_ended(&ps);
	cli_say_denied(ps.denied, ps.first_denied);
	return cli_flush();
}
