/* SPDX-License-Identifier: Apache-2.0 */
/* clrsym inject: a recording of perf, with names for managed code. */
#include "cli/cli.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/escape.h"
#include "base/log.h"
#include "base/number.h"
#include "cli/naming.h"
#include "cli/recording.h"
#include "perfdata/buildid.h"

static void help(void)
{
	printf("Usage: clrsym inject [OPTION]...\n"
	       "Writes a copy of a perf.data in which perf names every managed frame. What code "
	       "there was comes\nfrom clrsymd, from --trace, or by attaching to the .NET processes "
	       "that still run.\n\n"
	       "  -i, --input FILE        what perf record wrote; - for a pipe (perf.data)\n"
	       "  -o, --output FILE       the copy; - for a pipe (perf.clrsym.data); without -i "
	       "and "
	       "-o\n"
	       "                          between two pipes: from one to the other\n"
	       "      --trace [PID=]FILE  a recorded stream instead of attaching, e.g. a "
	       ".nettrace of\n"
	       "                          dotnet-trace; repeatable\n"
	       "      --buildid-dir DIR   perf's build-id cache (perf's own choice, or "
	       "~/.debug)\n"
	       "      --image-dir DIR     name images by path instead, and put them there\n"
	       "      --all-bodies        images hold all code that is known, not only what was "
	       "hit\n"
	       "      --no-code           images without code bytes: nothing to "
	       "annotate\n" NAMING_OPTIONS_HELP
	       "      --map-only          only rename managed mappings to //anon, for "
	       "/tmp/perf-PID.map\n" DAEMON_HELP_MANY
	       "      --dry-run           write nothing, say what would be named\n"
	       "      --prune             remove all images that were ever put into the cache\n"
	       "\n" CLI_EXIT_HELP);
}

static int prune(const char *dir)
{
	_cleanup_(buildid_cache_freep) struct buildid_cache *cache = NULL;
	uint64_t bytes = 0;
	size_t n = 0;
	int r;

	r = buildid_cache_open(&cache, dir);
	if (r == 0)
		r = buildid_cache_prune(cache, &n, &bytes);
	if (r) {
		log_error("%s", r < 0 ? strerror(-r) : buildid_cache_error_text(cache, r));
		return EXIT_FAILED;
	}
	printf("%s: %zu image%s removed, %" PRIu64 " KB\n", buildid_cache_path(cache), n,
	       n == 1 ? "" : "s", bytes >> 10);
	return cli_flush();
}

/* "[PID=]FILE" */
static int add_trace(struct sources *set, const char *arg)
{
	const char *equals = strchr(arg, '=');
	_cleanup_free_ char *number = NULL;
	pid_t pid = 0;
	int r;

	if (equals) {
		number = strndup(arg, (size_t)(equals - arg));
		if (!number)
			return -ENOMEM;
		if (parse_pid(number, &pid))
			arg = equals + 1;
		else
			pid = 0;
	}
	r = source_trace(set, pid, arg);
	if (r < 0)
		log_error("%s: %s", escape_terminal(arg, strlen(arg)), strerror(-r));
	return r;
}

/* A place for images by path: perf takes /tmp/perf-* for text maps. */
static const char *bad_image_dir(const char *dir)
{
	struct stat st;

	if (stat(dir, &st) < 0 || !S_ISDIR(st.st_mode))
		return "no such directory";
	if (strncmp(dir, "/tmp/perf-", 10) == 0)
		return "perf reads what is named /tmp/perf-* as text maps; use another place";
	return NULL;
}

static bool is_fifo(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 && S_ISFIFO(st.st_mode);
}

int cli_inject(int argc, char **argv)
{
	enum {
		OPT_TRACE = 256,
		OPT_BUILDID_DIR,
		OPT_IMAGE_DIR,
		OPT_ALL_BODIES,
		OPT_NO_CODE,
		OPT_MAP_ONLY,
		OPT_DRY_RUN,
		OPT_PRUNE,
	};
	static const struct option options[] = {
		{ "input", required_argument, NULL, 'i' },
		{ "output", required_argument, NULL, 'o' },
		{ "trace", required_argument, NULL, OPT_TRACE },
		{ "buildid-dir", required_argument, NULL, OPT_BUILDID_DIR },
		{ "image-dir", required_argument, NULL, OPT_IMAGE_DIR },
		{ "all-bodies", no_argument, NULL, OPT_ALL_BODIES },
		{ "no-code", no_argument, NULL, OPT_NO_CODE },
		NAMING_OPTIONS,
		{ "map-only", no_argument, NULL, OPT_MAP_ONLY },
		{ "dry-run", no_argument, NULL, OPT_DRY_RUN },
		{ "prune", no_argument, NULL, OPT_PRUNE },
		DAEMON_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(sources_deinit) struct sources set = { 0 };
	_cleanup_free_ char *image_dir = NULL;
	struct recording_options opts = { .attach = true, .strict = true };
	bool pruning = false;
	struct naming naming = { 0 };
	const char *bad, *wrong;
	int c, r;

	r = sources_init(&set);
	if (r < 0) {
		log_error("%s", strerror(-r));
		return EXIT_FAILED;
	}
	set.opts.once = true;
	while ((c = getopt_long(argc, argv, "i:o:h", options, NULL)) >= 0) {
		switch (c) {
		case 'i': opts.in = optarg; break;
		case 'o': opts.out = optarg; break;
		case OPT_TRACE:
			if (add_trace(&set, optarg))
				return EXIT_FAILED;
			break;
		case OPT_BUILDID_DIR: opts.buildid_dir = optarg; break;
		case OPT_IMAGE_DIR:
			free(image_dir);
			image_dir = realpath(optarg, NULL);
			bad = bad_image_dir(image_dir ? image_dir : optarg);
			if (bad) {
				log_error("%s: %s", escape_terminal(optarg, strlen(optarg)), bad);
				return EXIT_FAILED;
			}
			opts.inject.image_dir = image_dir;
			break;
		case OPT_ALL_BODIES: opts.inject.all_bodies = true; break;
		case OPT_NO_CODE: opts.no_code = true; break;
		case NAMING_OPT_NAMES:
		case NAMING_OPT_NO_TIERS:
			wrong = naming_take(&naming, c, optarg);
			if (wrong)
				return cli_usage_error("inject", "%s", wrong);
			break;
		case OPT_MAP_ONLY: opts.inject.map_only = true; break;
		case OPT_DRY_RUN: opts.dry_run = true; break;
		case OPT_PRUNE: pruning = true; break;
		case 'h': help(); return cli_flush();
		default:
			if (!daemon_option_take(&set.daemon_opts, c, optarg))
				return cli_usage_hint("inject");
			break;
		}
	}
	if (optind < argc)
		return cli_usage_error("inject", "only options: the recording is -i FILE");
	opts.inject.style = naming.style;
	opts.inject.no_tiers = naming.no_tiers;
	if (pruning)
		return prune(opts.buildid_dir);
	/* between two pipes it is a filter, like perf inject */
	if (!opts.in && !opts.out && is_fifo(STDIN_FILENO) && is_fifo(STDOUT_FILENO))
		opts.in = opts.out = "-";
	if (!opts.in)
		opts.in = "perf.data";
	if (!opts.out)
		opts.out = "perf.clrsym.data";
	return recording_inject(&set, &opts);
}
