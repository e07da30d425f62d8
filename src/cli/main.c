/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym: the command line. A table of subcommands; stdout is the answer, stderr the talk;
 * exit status 0 done, 1 failed, 2 usage.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>

#include "base/caps.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/number.h"
#include "base/util.h"

static const struct {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
} verbs[] = {
	{ "ps", cli_ps, "list .NET processes: who can be attached, who cannot and why" },
	{ "map", cli_map, "attach to a process once and write its /tmp/perf-PID.map" },
	{ "decode", cli_decode, "print the events or the final code map of a trace file" },
	{ "resolve", cli_resolve, "name addresses, at their time, of a process or from traces" },
	{ "filter", cli_filter, "name the addresses in the output of bpftrace or perf script" },
	{ "methods", cli_methods, "list the code of a process" },
	{ "modules", cli_modules, "list what a process has loaded, with PDB ids" },
	{ "watch", cli_watch, "print the changes to a process's code as they come" },
	{ "perf", cli_perf, "run perf record, and name the managed code in what it wrote" },
	{ "inject", cli_inject, "name the managed code in a perf.data" },
	{ "image", cli_image, "write a process's code as an ELF file, for gdb and the like" },
};

static void print_help(FILE *out)
{
	size_t i;

	fprintf(out, "Usage: clrsym VERB [OPTION]... [ARGUMENT]...\n"
		     "Names the machine code of .NET processes.\n\n");
	for (i = 0; i < ARRAY_SIZE(verbs); i++)
		fprintf(out, "  %-9s%s\n", verbs[i].name, verbs[i].summary);
	fprintf(out,
		"\n  --help     this text; 'clrsym help VERB' or 'clrsym VERB --help' for a verb\n"
		"  --version  print the version\n");
}

int cli_usage_error(const char *verb, const char *fmt, ...)
{
	va_list ap;

	fprintf(stderr, "clrsym %s: ", verb);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	putc('\n', stderr);
	return cli_usage_hint(verb);
}

int cli_usage_hint(const char *verb)
{
	fprintf(stderr, "Try 'clrsym %s --help'.\n", verb);
	return EXIT_USAGE;
}

int cli_parse_pid(const char *verb, const char *s, pid_t *pidp)
{
	if (parse_pid(s, pidp))
		return 0;
	return cli_usage_error(verb, "'%s' is no process id", escape_terminal(s, strlen(s)));
}

int cli_only_pid(const char *verb, const char *option, int n, char **args, pid_t *pidp)
{
	if (option && n)
		return cli_usage_error(verb, "one PID: as an argument or with -p, not both");
	if (!option && n != 1)
		return cli_usage_error(verb, "one PID");
	return cli_parse_pid(verb, option ? option : args[0], pidp);
}

void cli_say_denied(unsigned int n, pid_t first)
{
	const char *how =
		geteuid() ? "run as root, or with CAP_SYS_PTRACE" : "needs CAP_SYS_PTRACE";

	if (n == 1)
		log_info("pid %d may not be looked at (%s)", (int)first, how);
	else if (n)
		log_info("%u processes may not be looked at, pid %d the first of them (%s)", n,
			 (int)first, how);
}

int cli_flush(void)
{
	if (fflush(stdout) || ferror(stdout)) {
		log_error("cannot write the answer: %s", strerror(errno));
		return EXIT_FAILED;
	}
	return EXIT_DONE;
}

int cli_end(int r)
{
	int status = cli_flush();

	if (r < 0)
		log_error("%s", strerror(-r));
	return r ? EXIT_FAILED : status;
}

int cli_read_trace(const char *path, int (*fn)(void *data, const void *bytes, size_t n), void *data)
{
	_cleanup_free_ uint8_t *bytes = malloc(READ_CHUNK);
	_cleanup_close_ int fd = -1;
	ssize_t n;
	int r;

	if (!bytes)
		return -ENOMEM;
	if (strcmp(path, "-") == 0)
		fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
	else
		fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (;;) {
		n = read(fd, bytes, READ_CHUNK);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return 0;
		r = fn(data, bytes, (size_t)n);
		if (r)
			return r;
	}
}

int cli_trace_end(const char *path, struct nettrace *nt)
{
	int r = nettrace_finish(nt);

	if (r == NETTRACE_E_TRUNCATED || (r == 0 && !nettrace_ended(nt))) {
		log_warn("%s: the stream ended early; what came before is whole",
			 escape_terminal(path, strlen(path)));
		return 0;
	}
	if (r)
		log_error("%s: %s", escape_terminal(path, strlen(path)),
			  nettrace_error_text(nt, r));
	return r;
}

static int run_verb(int argc, char **argv)
{
	static char name[32];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(verbs); i++) {
		if (strcmp(argv[0], verbs[i].name) != 0)
			continue;
		/* how getopt introduces its complaints */
		snprintf(name, sizeof(name), "clrsym %s", verbs[i].name);
		argv[0] = name;
		return verbs[i].run(argc, argv);
	}
	fprintf(stderr, "clrsym: no verb '%s'\nTry 'clrsym --help'.\n",
		escape_terminal(argv[0], strlen(argv[0])));
	return EXIT_USAGE;
}

int main(int argc, char **argv)
{
	static char help[] = "--help";

	log_init("clrsym", LOG_INFO);
	signal(SIGPIPE, SIG_DFL);
	signal(SIGXFSZ, SIG_IGN); /* a limit on file sizes is an error of write() */
	if (argc < 2) {
		print_help(stderr);
		return EXIT_USAGE;
	}
	if (strcmp(argv[1], "help") == 0 && argc == 3) {
		char *args[] = { argv[2], help, NULL };

		return run_verb(2, args);
	}
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
	    strcmp(argv[1], "help") == 0) {
		print_help(stdout);
		return cli_flush();
	}
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0) {
		printf("clrsym %s\n", CLRSYM_VERSION);
		return cli_flush();
	}
	return run_verb(argc - 1, argv + 1);
}
