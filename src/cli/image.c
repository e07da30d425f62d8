/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clrsym image PID: the code of a process as an ELF file with a symbol a body.
 *
 * Two address spaces are of use. Of the whole process: address minus the lowest one, so that gdb
 * puts it in place with one offset. Of the mappings of one file (--mapping): the file offset, which
 * is how readers that go by mapping (blazesym) ask. Neither holds code bytes: whoever has the
 * process or its core has them there.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <string.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "cli/naming.h"
#include "cli/publish.h"
#include "cli/source.h"
#include "elf/image.h"

#define PAGE UINT64_C(4096)

struct file_range {
	uint64_t start, end, offset;
};

struct image_run {
	const char *mapping; /* NULL: the whole process */
	struct naming naming;
	struct file_range *ranges;
	size_t n_ranges;
	int no_ranges; /* why there are none: -errno or an enum proc_error */
	const struct codemap *map;
	struct elf_image *elf;
	struct buf name;
	uint64_t lowest;
	size_t refused;
};

/* The path or its last component, without the kernel's mark of a file that has no name any more. */
static bool is_mapping(const struct proc_mapping *m, const char *name)
{
	static const char deleted[] = " (deleted)";
	const char *file = m->path, *slash;
	size_t len = m->path_len;

	if (len > strlen(deleted) &&
	    memcmp(file + len - strlen(deleted), deleted, strlen(deleted)) == 0)
		len -= strlen(deleted);
	slash = len ? memrchr(file, '/', len) : NULL;
	if (slash && !strchr(name, '/')) {
		len -= (size_t)(slash + 1 - file);
		file = slash + 1;
	}
	return slash && len && len == strlen(name) && memcmp(file, name, len) == 0;
}

static int take_range(void *data, const struct proc_mapping *m)
{
	struct image_run *run = data;
	struct file_range *more;

	if (!m->executable || !is_mapping(m, run->mapping) || run->n_ranges == CAP_MODULES)
		return 0;
	more = realloc(run->ranges, (run->n_ranges + 1) * sizeof(*more));
	if (!more)
		return -ENOMEM;
	run->ranges = more;
	more[run->n_ranges++] = (struct file_range){ m->start, m->end, m->offset };
	return 0;
}

/* Where a body is in the image; 0: nowhere. */
static uint64_t image_address(const struct image_run *run, const struct codemap_info *info)
{
	size_t i;

	if (!run->mapping)
		return info->start - run->lowest + ELF_IMAGE_BASE;
	for (i = 0; i < run->n_ranges; i++) {
		const struct file_range *range = &run->ranges[i];

		if (info->start >= range->start && info->start < range->end)
			return info->start - range->start + range->offset;
	}
	return 0;
}

static int find_lowest(void *data, const struct codemap_body *body)
{
	struct image_run *run = data;
	struct codemap_info info;

	codemap_body_info(run->map, body, &info);
	if (info.unload == UINT64_MAX)
		run->lowest = MIN(run->lowest, info.start & ~(PAGE - 1));
	return 0;
}

static int add_body(void *data, const struct codemap_body *body)
{
	struct image_run *run = data;
	struct codemap_info info;
	uint64_t addr;
	int r;

	codemap_body_info(run->map, body, &info);
	addr = info.unload == UINT64_MAX ? image_address(run, &info) : 0;
	if (!addr)
		return 0;
	buf_clear(&run->name);
	r = names_append(&run->name, &info.name, run->naming.style, !run->naming.no_tiers);
	if (r == 0)
		r = elf_image_add(run->elf, addr, info.size, (const char *)run->name.data,
				  run->name.len, NULL);
	run->refused += r > 0;
	return MIN(r, 0);
}

static int write_elf(int fd, void *data)
{
	const struct image_run *run = data;

	return elf_image_write(run->elf, fd);
}

static void image_run_deinit(struct image_run *run)
{
	elf_image_free(run->elf);
	free(run->ranges);
	buf_deinit(&run->name);
}

static int make_image(struct image_run *run, const struct source *source)
{
	uint8_t id[ELF_BUILD_ID_SIZE];
	int r;

	run->map = source_map(source);
	run->lowest = UINT64_MAX;
	buf_init(&run->name, CAP_PROC_FILE);
	r = elf_image_new(&run->elf, source->machine, UINT64_MAX);
	if (r == 0)
		r = codemap_each(run->map, find_lowest, run);
	if (r == 0)
		r = codemap_each(run->map, add_body, run);
	return r < 0 ? r : elf_image_finish(run->elf, id);
}

static bool is_complete(void *data)
{
	const struct source *source = data;

	return source->complete || source->ended;
}

/*
 * What the daemon has of it, attached for us if need be; or we attach. A process that lives is
 * meant before others that had its pid; of those the last. Returns 0, -errno, or 1: said.
 */
static int find_source(struct sources *set, pid_t pid, struct source **sourcep)
{
	_cleanup_free_ struct daemon_process *items = NULL;
	_cleanup_(proc_closep) struct proc *proc = NULL;
	size_t i, n;
	int r;

	r = proc_open(pid, &proc);
	if (r == 0 || r == PROC_E_GONE)
		r = sources_list(set, &items, &n);
	if (r < 0)
		return r;
	for (i = 0; r == 0 && i < n; i++) {
		if (items[i].pid != pid || (proc && items[i].start != proc->start))
			continue;
		*sourcep = source_from_daemon(set, &items[i]);
		return *sourcep ? 0 : -ENOMEM;
	}
	if (set->no_daemon)
		return 1;
	if (!proc)
		return source_attach(set, pid, sourcep);
	if (sources_daemon(set))
		return source_hold(set, pid, proc->start, sourcep);
	return source_attach_proc(set, TAKE_PTR(proc), sourcep);
}

/* Where the mappings are, which only the process itself tells. 0, -errno or an enum proc_error. */
static int take_ranges(struct image_run *run, const struct source *source)
{
	_cleanup_(proc_closep) struct proc *own = NULL;
	const struct proc *proc;
	int r, result = 0;

	if (source->target) {
		proc = target_proc(source->target);
	} else {
		r = proc_open(source->pid, &own);
		if (r)
			return r;
		if (own->start != source->start)
			return PROC_E_GONE;
		proc = own;
	}
	r = proc_each_mapping(proc, take_range, run, &result);
	return r ? r : result;
}

/* Waits until all is known, and detaches. */
static int await_source(struct image_run *run, struct sources *set, struct source *source)
{
	int r;

	if (source->kind == SOURCE_DAEMON && !source->ended)
		r = source_export(source, false, clock_now_ns());
	else
		r = sources_wait(set, is_complete, source, 0);
	if (r == 0 && source->complete && run->mapping)
		run->no_ranges = take_ranges(run, source);
	return r ? r : sources_stop(set);
}

/* 0, or what went wrong has been said. */
static int read_process(struct image_run *run, struct sources *set, pid_t pid,
			struct source **sourcep)
{
	int r;

	r = find_source(set, pid, sourcep);
	if (r > 0)
		return -1;
	if (r == 0)
		r = await_source(run, set, *sourcep);
	if (set->interrupted)
		log_error("pid %d: interrupted", (int)pid);
	else if (r < 0)
		log_error("pid %d: %s", (int)pid, strerror(-r));
	else if (!(*sourcep)->complete)
		log_error("pid %d: %s", (int)pid, (*sourcep)->why);
	else if (run->no_ranges == PROC_E_GONE)
		log_error("pid %d: --mapping needs the process, and it has exited", (int)pid);
	else if (run->no_ranges)
		log_error("pid %d: %s", (int)pid,
			  run->no_ranges < 0 ? strerror(-run->no_ranges)
					     : proc_error_text(NULL, run->no_ranges, NULL));
	else if (run->mapping && !run->n_ranges)
		log_error("pid %d: no executable mapping of a file %s", (int)pid,
			  escape_terminal(run->mapping, strlen(run->mapping)));
	else
		return 0;
	return -1;
}

static void help(void)
{
	printf("Usage: clrsym image [OPTION]... PID -o FILE\n"
	       "Writes the code of a .NET process as an ELF file with a symbol for each code "
	       "body;\nof one that has exited, too, if clrsymd had it.\n\n"
	       "  -o, --output FILE       the file\n" CLI_PID_HELP
	       "      --mapping NAME      only the code in mappings of that file, by file offset, "
	       "e.g.\n"
	       "                          memfd:doublemapper or "
	       "System.Private.CoreLib.dll;\n"
	       "                          with a slash: its whole path\n" NAMING_OPTIONS_HELP
		       DAEMON_OPTIONS_HELP
	       "\nIt prints how gdb puts it in place: add-symbol-file FILE -o "
	       "OFFSET\n" CLI_EXIT_HELP);
}

int cli_image(int argc, char **argv)
{
	enum { OPT_MAPPING = 256 };
	static const struct option options[] = {
		{ "output", required_argument, NULL, 'o' },
		{ "mapping", required_argument, NULL, OPT_MAPPING },
		CLI_PID_OPTION,
		NAMING_OPTIONS,
		DAEMON_OPTIONS,
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	_cleanup_(image_run_deinit) struct image_run run = { 0 };
	_cleanup_(sources_deinit) struct sources set = { 0 };
	struct source *source = NULL;
	const char *out = NULL, *pid_option = NULL, *wrong;
	pid_t pid;
	int c, r;

	r = sources_init(&set);
	if (r < 0) {
		log_error("%s", strerror(-r));
		return EXIT_FAILED;
	}
	set.opts.once = true;
	while ((c = getopt_long(argc, argv, "o:p:h", options, NULL)) >= 0) {
		switch (c) {
		case 'o': out = optarg; break;
		case 'p': pid_option = optarg; break;
		case OPT_MAPPING: run.mapping = optarg; break;
		case NAMING_OPT_NAMES:
		case NAMING_OPT_NO_TIERS:
			wrong = naming_take(&run.naming, c, optarg);
			if (wrong)
				return cli_usage_error("image", "%s", wrong);
			break;
		case 'h': help(); return cli_flush();
		default:
			if (!daemon_option_take(&set.daemon_opts, c, optarg))
				return cli_usage_hint("image");
			break;
		}
	}
	r = cli_only_pid("image", pid_option, argc - optind, argv + optind, &pid);
	if (r)
		return r;
	if (!out)
		return cli_usage_error("image", "-o FILE is needed");
	if (read_process(&run, &set, pid, &source))
		return EXIT_FAILED;
	r = make_image(&run, source);
	if (r == 0)
		r = publish_file(out, write_elf, &run);
	if (r < 0) {
		log_error("%s: %s", escape_terminal(out, strlen(out)), strerror(-r));
		return EXIT_FAILED;
	}
	if (run.refused)
		log_warn("%zu bodies are left out: no place for them in the image", run.refused);
	if (run.mapping)
		printf("%s: %zu bodies at the file offsets of %s\n", out, elf_image_count(run.elf),
		       run.mapping);
	else
		printf("%s: %zu bodies; gdb: add-symbol-file %s -o 0x%" PRIx64 "\n", out,
		       elf_image_count(run.elf), out, run.lowest - ELF_IMAGE_BASE);
	return cli_flush();
}
