/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym resolve: addresses to names, of a process or from recorded streams.
 *
 * The streams (live sessions and rundowns of one process, in any number and order) fill one map,
 * merged by event time. Each address is looked up at its own time. All that are there at once are
 * one question, so that a file of a million does not take a million round trips, and an address
 * that is typed is answered at once.
 */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <string.h>

#include "base/caps.h"
#include "base/escape.h"
#include "base/log.h"
#include "cli/answer.h"
#include "cli/lines.h"

/* "ADDR" or "ADDR@NS"; ADDR in hex with or without 0x, NS in decimal. */
static bool parse_address(const char *s, uint64_t *addrp, uint64_t *timep)
{
	unsigned long long addr, time = 0;
	char *end;

	if (!isxdigit((unsigned char)s[0]))
		return false;
	errno = 0;
	addr = strtoull(s, &end, 16);
	if (errno || end == s)
		return false;
	if (*end == '@') {
		if (!isdigit((unsigned char)end[1]))
			return false;
		time = strtoull(end + 1, &end, 10);
		if (errno || !time)
			return false;
	}
	if (*end)
		return false;
	*addrp = addr;
	*timep = time;
	return true;
}

/* -- questions -------------------------------------------------------------------------- */

struct resolve {
	struct ask ask;
	struct ask_process *process;
	struct codemap *map; /* of the traces */
	const char **traces; /* named by --trace */
	int n_traces;
	pid_t pid;
	bool json, caller, damaged, from_stdin;
	struct ask_item *items;
	size_t n, room;
};

static void resolve_deinit(struct resolve *run)
{
	ask_deinit(&run->ask);
	codemap_free(run->map);
	free(run->traces);
	free(run->items);
}

static int add_item(struct resolve *run, uint64_t addr, uint64_t time)
{
	if (run->n == run->room) {
		size_t room = run->room ? 2 * run->room : 64;
		struct ask_item *more = reallocarray(run->items, room, sizeof(*more));

		if (!more)
			return -ENOMEM;
		run->items = more;
		run->room = room;
	}
	run->items[run->n++] =
		(struct ask_item){ .addr = addr, .time = time, .caller = run->caller };
	return 0;
}

static int on_answer(void *data, size_t i, const struct ask_answer *a)
{
	const struct resolve *run = data;

	return answer_print(run->items[i].addr, run->items[i].time, a, run->json);
}

/* Asks what was gathered. */
static int flush_items(struct resolve *run)
{
	int r = ask_resolve(run->process, run->items, run->n, CAP_QUERY_WAIT_MS, on_answer, run);

	run->n = 0;
	if (r == 0 && fflush(stdout))
		return 1; /* cli_flush() will say it */
	return r;
}

/* Returns EXIT_DONE, EXIT_USAGE (said), or -1 with *rp. */
static int take_line(struct resolve *run, const struct line *line, int *rp)
{
	_cleanup_free_ char *text = NULL;
	const char *s = line->text;
	size_t n = line->text_len;
	uint64_t addr, time;

	while (n && isspace((unsigned char)s[n - 1]))
		n--;
	if (!n && !line->part)
		return EXIT_DONE;
	text = strndup(s, n);
	*rp = text ? 0 : -ENOMEM;
	if (*rp)
		return -1;
	if (line->part || strlen(text) != n || !parse_address(text, &addr, &time)) {
		*rp = flush_items(run);
		log_error("stdin: not an address: %s", escape_terminal(s, MIN(n, (size_t)80)));
		return EXIT_USAGE;
	}
	*rp = add_item(run, addr, time);
	return *rp ? -1 : EXIT_DONE;
}

/* Returns an exit status, or -1 with *rp. */
static int resolve_stdin(struct resolve *run, int *rp)
{
	_cleanup_(lines_deinit) struct lines lines = { 0 };
	struct line line;
	bool end = false;
	int status;

	*rp = lines_init(&lines, STDIN_FILENO);
	while (*rp == 0) {
		*rp = lines_read(&lines, &run->ask, &end);
		if (*rp || end)
			break;
		while (lines_next(&lines, &line)) {
			status = take_line(run, &line, rp);
			if (status)
				return status;
		}
		*rp = flush_items(run);
	}
	return *rp ? -1 : EXIT_DONE;
}

/* -- the verb --------------------------------------------------------------------------- */

static void help(void)
{
	printf("Usage: clrsym resolve [OPTION]... -p PID [ADDR[@NS]... | -]\n"
	       "       clrsym resolve [OPTION]... --trace FILE... [ADDR[@NS]... | -]\n"
	       "Names addresses of a process, or from recorded trace streams of one, merged by "
	       "time.\n\n"
	       "  ADDR      an address in hex\n"
	       "  @NS       the moment it was sampled, in ns of CLOCK_MONOTONIC;\n"
	       "            without it the last known state answers\n"
	       "  -         read addresses from stdin, one a line (also when none is given)\n"
	       "  -p, --pid PID           the process\n"
	       "      --trace FILE        a stream, e.g. a .nettrace file of dotnet-trace; "
	       "repeatable\n"
	       "      --caller            they are return addresses: looked up one byte before\n"
	       "      --json              one JSON object a line\n" DAEMON_OPTIONS_HELP
	       "\nEach is answered with 'ADDR METHOD+0xOFFSET [TIER]', or 'ADDR ? (REASON)': "
	       "unmapped, stub,\n"
	       "native, not announced, not loaded yet, retired, expired, data lost at NS, over a "
	       "cap.\n"
	       "Arguments are all looked at before the first is answered, lines of stdin as they "
	       "come.\n" CLI_EXIT_HELP "0, too, if there is no name; 2 for what is no address.\n");
}

/* A stream into the map. 0, or an exit status. */
static int take_trace(struct resolve *run, const char *path)
{
	/* a recording is resolved whole: nothing of it is forgotten */
	static const struct codemap_options opts = {
		.retired_bytes = SIZE_MAX,
		.retired_ns = UINT64_MAX,
	};
	_cleanup_(feed_freep) struct feed *feed = NULL;
	int r = 0;

	if (!run->map)
		r = codemap_new(&run->map, &opts);
	if (r == 0)
		r = answer_read_trace(run->map, path, &feed);
	if (r < 0) {
		log_error("%s: %s", escape_terminal(path, strlen(path)), strerror(-r));
		return EXIT_FAILED;
	}
	run->damaged |= r > 0;
	return 0;
}

/* Who answers. 0, or an exit status. */
static int open_process(struct resolve *run)
{
	int r;

	if (run->n_traces)
		r = ask_open_trace(&run->ask, run->map, &run->process);
	else
		r = ask_open(&run->ask, run->pid, false, &run->process);
	if (r < 0)
		log_error("%s", strerror(-r));
	return r ? EXIT_FAILED : 0;
}

/* All arguments, before any is answered. 0, or an exit status. */
static int take_arguments(struct resolve *run, int argc, char **argv)
{
	uint64_t addr, time;
	int i, r;

	run->from_stdin = !argc;
	for (i = 0; i < argc; i++) {
		if (strcmp(argv[i], "-") == 0) {
			run->from_stdin = true;
			continue;
		}
		if (!parse_address(argv[i], &addr, &time))
			return cli_usage_error("resolve", "not an address: %s",
					       escape_terminal(argv[i], strlen(argv[i])));
		r = add_item(run, addr, time);
		if (r < 0) {
			log_error("%s", strerror(-r));
			return EXIT_FAILED;
		}
	}
	return 0;
}

/* Arguments, then stdin if it is wanted. Returns an exit status. */
static int run_questions(struct resolve *run)
{
	int r, status = EXIT_DONE;

	r = flush_items(run);
	if (r == 0 && run->from_stdin)
		status = resolve_stdin(run, &r);
	r = cli_end(r);
	if (r)
		return r;
	return status ? status : run->damaged ? EXIT_FAILED : EXIT_DONE;
}

/* --trace A B C: further files, until something looks like an address. Returns how many. */
static int count_files(int argc, char **argv)
{
	uint64_t addr, time;
	int i;

	for (i = 0; i < argc; i++)
		if (strcmp(argv[i], "-") == 0 || parse_address(argv[i], &addr, &time))
			break;
	return i;
}

/* What the options and arguments say; argv: what is not an option. 0, or an exit status. */
static int prepare(struct resolve *run, int argc, char **argv)
{
	int i, r, n_files = run->n_traces ? count_files(argc, argv) : 0;

	if (run->n_traces && run->pid)
		return cli_usage_error("resolve", "--trace or -p, not both");
	if (!run->n_traces && !run->pid)
		return cli_usage_error("resolve", "-p PID or --trace FILE is needed");
	r = take_arguments(run, argc - n_files, argv + n_files);
	for (i = 0; i < run->n_traces && r == 0; i++)
		r = take_trace(run, run->traces[i]);
	for (i = 0; i < n_files && r == 0; i++)
		r = take_trace(run, argv[i]);
	return r ? r : open_process(run);
}

int cli_resolve(int argc, char **argv)
{
	static const struct option options[] = {
		{ "pid", required_argument, NULL, 'p' },
		{ "trace", required_argument, NULL, 't' },
		{ "json", no_argument, NULL, 'j' },
		{ "caller", no_argument, NULL, 'c' },
		DAEMON_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(resolve_deinit) struct resolve run = { .ask.il_maps = true };
	int c, r;

	run.traces = calloc((size_t)argc, sizeof(*run.traces));
	if (!run.traces)
		return cli_end(-ENOMEM);
	while ((c = getopt_long(argc, argv, "p:t:h", options, NULL)) >= 0) {
		if (daemon_option_take(&run.ask.daemon, c, optarg))
			continue;
		switch (c) {
		case 'p':
			r = cli_parse_pid("resolve", optarg, &run.pid);
			if (r)
				return r;
			break;
		case 't': run.traces[run.n_traces++] = optarg; break;
		case 'j': run.json = true; break;
		case 'c': run.caller = true; break;
		case 'h': help(); return cli_flush();
		default: return cli_usage_hint("resolve");
		}
	}
	r = prepare(&run, argc - optind, argv + optind);
	return r ? r : run_questions(&run);
}
