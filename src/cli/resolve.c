/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym resolve: addresses to names, from recorded streams.
 *
 * The streams (live sessions and rundowns of one process, in any number and order) fill one map,
 * merged by event time; each address is then looked up at its own time.
 */
#include "cli/cli.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <string.h>

#include "base/escape.h"
#include "base/log.h"
#include "cli/answer.h"

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

static int resolve_stdin(const struct codemap *map, bool json)
{
	_cleanup_free_ char *line = NULL;
	size_t size = 0;
	uint64_t addr, time;
	ssize_t n;

	while ((n = getline(&line, &size, stdin)) >= 0) {
		while (n && isspace((unsigned char)line[n - 1]))
			line[--n] = '\0';
		if (!n)
			continue;
		if (!parse_address(line, &addr, &time)) {
			log_error("stdin: not an address: %s",
				  escape_terminal(line, MIN((size_t)n, (size_t)80)));
			return EXIT_USAGE;
		}
		answer_print(map, addr, time, json);
	}
	return EXIT_DONE;
}

static void help(void)
{
	printf("Usage: clrsym resolve --trace FILE... [--json] [ADDR[@NS]... | -]\n"
	       "Names addresses from recorded trace streams of one process, merged by time.\n\n"
	       "  ADDR      an address in hex\n"
	       "  @NS       the moment it was sampled, in ns of CLOCK_MONOTONIC;\n"
	       "            without it the last known state answers\n"
	       "  -         read addresses from stdin, one a line (also when none is given)\n"
	       "      --trace FILE  a stream, e.g. a .nettrace file of dotnet-trace; repeatable\n"
	       "      --json        one JSON object a line\n");
}

int cli_resolve(int argc, char **argv)
{
	static const struct option options[] = {
		{ "trace", required_argument, NULL, 't' },
		{ "json", no_argument, NULL, 'j' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(codemap_freep) struct codemap *map = NULL;
	bool json = false, from_stdin = true, failed = false;
	uint64_t addr, time;
	int c, i, r, n_traces = 0;
	struct codemap_options opts = {
		/* a recording is resolved whole: nothing of it is forgotten */
		.retired_bytes = SIZE_MAX,
		.retired_ns = UINT64_MAX,
	};

	r = codemap_new(&map, &opts);
	if (r < 0)
		goto out;
	while ((c = getopt_long(argc, argv, "t:h", options, NULL)) >= 0) {
		_cleanup_(feed_freep) struct feed *feed = NULL;

		switch (c) {
		case 't':
			r = answer_read_trace(map, optarg, &feed);
			if (r < 0) {
				log_error("%s: %s", escape_terminal(optarg, strlen(optarg)),
					  strerror(-r));
				return EXIT_FAILED;
			}
			failed |= r > 0;
			n_traces++;
			break;
		case 'j': json = true; break;
		case 'h': help(); return cli_flush();
		default: return cli_usage_hint("resolve");
		}
	}
	/* --trace A B C: further files, until something looks like an address */
	for (i = optind; i < argc; i++) {
		_cleanup_(feed_freep) struct feed *feed = NULL;

		if (strcmp(argv[i], "-") == 0 || parse_address(argv[i], &addr, &time))
			break;
		if (!n_traces)
			break;
		r = answer_read_trace(map, argv[i], &feed);
		if (r < 0) {
			log_error("%s: %s", escape_terminal(argv[i], strlen(argv[i])),
				  strerror(-r));
			return EXIT_FAILED;
		}
		failed |= r > 0;
	}
	if (!n_traces)
		return cli_usage_error("resolve", "--trace FILE is needed");
	r = EXIT_DONE;
	for (; i < argc; i++) {
		if (strcmp(argv[i], "-") == 0) {
			from_stdin = true;
			break;
		}
		if (!parse_address(argv[i], &addr, &time))
			return cli_usage_error("resolve", "not an address: %s",
					       escape_terminal(argv[i], strlen(argv[i])));
		answer_print(map, addr, time, json);
		from_stdin = false;
	}
	if (from_stdin)
		r = resolve_stdin(map, json);
	if (cli_flush() != EXIT_DONE)
		return EXIT_FAILED;
	return r ? r : failed ? EXIT_FAILED : EXIT_DONE;
out:
	log_error("%s", strerror(-r));
	return EXIT_FAILED;
}
