/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way of a recording:
 *
 *   open       a file, a directory of parts, or a pipe (spooled to a file without a name)
 *   scan       which programs, which code addresses
 *   sources    for each program that is worth it: the source that is there, or attach
 *   wait       until all that happened up to the last sample is known
 *   code       bytes of the bodies that were hit are read, and trusted only afterwards
 *   plan       images go into the build-id cache (or a directory) first,
 *   rewrite    then the recording appears, by rename
 */
#include "cli/recording.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "base/caps.h"
#include "base/clock.h"
#include "base/escape.h"
#include "base/log.h"
#include "base/number.h"
#include "cli/cli.h"
#include "cli/publish.h"
#include "cli/trust.h"
#include "perfdata/buildid.h"

/* A source's answers trail by some hundred ms; a starved target may take longer. */
#define WAIT_KNOWN_NS  SEC_NS(10)
#define WAIT_ATTACH_NS (DEFAULT_RUNDOWN_DEADLINE_NS + 4 * DEFAULT_IPC_DEADLINE_NS)

struct part {
	char *name; /* in the directory; NULL: the one file */
	int fd;
	struct perfdata *data;
};

struct recording {
	const struct recording_options *opts;
	struct sources *set;
	struct inject *inj;
	struct part *parts; /* the main one first */
	size_t n_parts;
	bool spooled;
	int dir_fd; /* of a directory */
	struct stat in_stat;
	struct source **sources; /* by program; NULL: none */
	char (*why)[512];        /* why there is none, or less than there should be; "" */
	bool *quiet;             /* no .NET process at all */
	struct perfdata_clock_track track;
	bool convert;     /* times are known on both clocks */
	uint64_t read_ns; /* code bytes were read until then */
	const char *no_times;
	const char *distrust;
	struct buildid_cache *cache;
	struct buf text;
	const char *doing;  /* for the progress line */
	unsigned int shown; /* percent; 0: no line is there */
};

static void recording_deinit(struct recording *rec)
{
	size_t i;

	inject_free(rec->inj);
	for (i = rec->n_parts; i--;) { /* parts before what they are parts of */
		perfdata_free(rec->parts[i].data);
		fd_close(rec->parts[i].fd);
		free(rec->parts[i].name);
	}
	free(rec->parts);
	fd_close(rec->dir_fd);
	free(rec->sources);
	free(rec->why);
	free(rec->quiet);
	buildid_cache_free(rec->cache);
	buf_deinit(&rec->text);
}

static const char *shown(const char *path)
{
	return strcmp(path, "-") == 0 ? "stdin" : escape_terminal(path, strlen(path));
}

/* -- progress --------------------------------------------------------------------------- */

static void show_progress(void *data, uint64_t done, uint64_t size)
{
	struct recording *rec = data;
	unsigned int percent = size ? (unsigned int)(done * 100 / size) : 0;

	if (percent == rec->shown)
		return;
	rec->shown = percent;
	fprintf(stderr, "\r%s %u %%", rec->doing, percent);
}

static void end_progress(struct recording *rec)
{
	if (rec->shown)
		fprintf(stderr, "\r\033[K");
	rec->shown = 0;
}

/* -- opening -------------------------------------------------------------------------- */

static int say(const char *path, int r)
{
	log_error("%s: %s", shown(path), strerror(-r));
	return r;
}

static int write_all(int fd, const uint8_t *bytes, size_t n)
{
	while (n) {
		ssize_t w = write(fd, bytes, n);

		if (w < 0 && errno == EINTR)
			continue;
		if (w < 0)
			return -errno;
		bytes += w;
		n -= (size_t)w;
	}
	return 0;
}

/* A file without a name, for as long as we live. */
static int spool(int from)
{
	const char *dir = getenv("TMPDIR");
	_cleanup_free_ uint8_t *bytes = malloc(READ_CHUNK);
	_cleanup_close_ int fd = -1;
	ssize_t n;
	int r;

	if (!bytes)
		return -ENOMEM;
	fd = open(dir && *dir == '/' ? dir : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	for (;;) {
		n = read(from, bytes, READ_CHUNK);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return TAKE_FD(fd);
		r = write_all(fd, bytes, (size_t)n);
		if (r < 0)
			return r;
	}
}

static int add_part(struct recording *rec, const char *name, int fd)
{
	struct part *parts = realloc(rec->parts, (rec->n_parts + 1) * sizeof(*parts));

	if (!parts) {
		close(fd);
		return -ENOMEM;
	}
	rec->parts = parts;
	parts[rec->n_parts] = (struct part){ .fd = fd, .name = name ? strdup(name) : NULL };
	rec->n_parts++;
	return name && !parts[rec->n_parts - 1].name ? -ENOMEM : 0;
}

static int part_number(const struct dirent *entry)
{
	uint64_t n;

	if (strcmp(entry->d_name, "data") == 0)
		return 0;
	if (strncmp(entry->d_name, "data.", 5) == 0 && parse_u64(entry->d_name + 5, 65535, &n))
		return 1 + (int)n;
	return -1;
}

static int is_part(const struct dirent *entry)
{
	return part_number(entry) >= 0;
}

static int compare_parts(const struct dirent **a, const struct dirent **b)
{
	return part_number(*a) - part_number(*b);
}

static int open_directory(struct recording *rec)
{
	struct dirent **entries;
	int i, n, r = 0;

	n = scandirat(rec->dir_fd, ".", &entries, is_part, compare_parts);
	if (n < 0)
		return -errno;
	if (!n || strcmp(entries[0]->d_name, "data") != 0)
		r = -ENOENT;
	for (i = 0; i < n; i++) {
		int fd = r ? -1
			   : openat(rec->dir_fd, entries[i]->d_name,
				    O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

		if (r == 0)
			r = fd < 0 ? -errno : add_part(rec, entries[i]->d_name, fd);
		free(entries[i]);
	}
	free(entries);
	return r;
}

static int open_input(struct recording *rec)
{
	const char *in = rec->opts->in;
	int fd;

	fd = strcmp(in, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
				  : open(in, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &rec->in_stat) < 0) {
		fd_close(fd);
		return -errno;
	}
	if (S_ISDIR(rec->in_stat.st_mode)) {
		rec->dir_fd = fd;
		return open_directory(rec);
	}
	if (!S_ISREG(rec->in_stat.st_mode)) {
		int spooled = spool(fd);

		close(fd);
		if (spooled < 0)
			return spooled;
		rec->spooled = true;
		fd = spooled;
	}
	return add_part(rec, NULL, fd);
}

static int say_data(const struct recording *rec, const struct part *part, int r)
{
	const char *text = r < 0                ? strerror(-r)
			   : r == INJECT_E_FULL ? "more mappings than any machine makes"
						: perfdata_error_text(part->data, r);

	log_error("%s%s%s: %s", shown(rec->opts->in), part->name ? "/" : "",
		  part->name ? part->name : "", text);
	return -1;
}

static int scan(struct recording *rec)
{
	struct inject_options opts = rec->opts->inject;
	size_t i;
	int r;

	if (isatty(STDERR_FILENO)) {
		opts.progress = show_progress;
		opts.progress_data = rec;
	}
	rec->doing = "reading";
	r = inject_new(&rec->inj, &opts);
	if (r < 0)
		return say(rec->opts->in, r);
	for (i = 0; i < rec->n_parts; i++) {
		struct part *part = &rec->parts[i];

		r = perfdata_open(&part->data, part->fd, i ? rec->parts[0].data : NULL);
		if (r == 0)
			r = inject_scan(rec->inj, part->data);
		end_progress(rec);
		if (r)
			return say_data(rec, part, r);
	}
	r = inject_scanned(rec->inj);
	return r < 0 ? say(rec->opts->in, r) : 0;
}

/* -- time ----------------------------------------------------------------------------- */

static uint64_t to_file_ns(void *data, uint64_t ns)
{
	const struct recording *rec = data;

	return perfdata_clock_from_mono(&rec->track, ns);
}

static uint64_t to_map_ns(void *data, uint64_t ns)
{
	const struct recording *rec = data;

	return perfdata_clock_to_mono(&rec->track, ns);
}

/* Relates the recording's clock to that of the code maps, and says whether it is of this boot. */
static void set_clock(struct recording *rec)
{
	struct perfdata_clock_pair pair = { 0 };
	struct perfdata_clock clock;
	uint64_t first, last;
	int r;

	perfdata_get_clock(rec->parts[0].data, &clock);
	inject_get_span(rec->inj, &first, &last);
	r = perfdata_clock_measure(clock.use_clockid, clock.clockid, &pair);
	rec->distrust = trust_recording(rec->inj, rec->parts[0].data, r ? 0 : pair.clock_ns);
	rec->track = rec->opts->track;
	if (!last) {
		rec->no_times = "the recording has no times";
		return;
	}
	if (clock.use_clockid && clock.clockid == CLOCK_MONOTONIC) {
		rec->track.n = 0;
		rec->convert = true;
		return;
	}
	if (!rec->track.n && r == 0 && !rec->distrust)
		perfdata_clock_track_add(&rec->track, &pair);
	rec->convert = rec->track.n > 0;
	if (!rec->convert)
		rec->no_times = rec->distrust ? rec->distrust : perfdata_clock_error_text(r);
}

/* -- sources -------------------------------------------------------------------------- */

static const char *trust(struct recording *rec, size_t i, uint64_t start,
			 const struct source_mapping *mappings, size_t n_mappings)
{
	const struct inject_program *program = inject_program(rec->inj, i);

	return trust_program(rec->inj, i, start,
			     rec->convert && program->first_ns ? to_map_ns(rec, program->first_ns)
							       : 0,
			     mappings, n_mappings);
}

/* A source that knows this program already. */
static struct source *find_source(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	struct source *s;

	for (s = rec->set->list; s; s = s->next) {
		if ((uint32_t)s->pid != program->pid)
			continue;
		if (!s->target ||
		    (s->complete && !trust(rec, i, s->start_ns, s->mappings, s->n_mappings)))
			return s;
		snprintf(rec->why[i], sizeof(rec->why[i]), "%s",
			 s->complete ? trust(rec, i, s->start_ns, s->mappings, s->n_mappings)
				     : s->why);
	}
	return NULL;
}

/* Attaches to the process that has the program's pid, if it is that program. */
static int attach(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	_cleanup_(proc_closep) struct proc *proc = NULL;
	struct source_mapping *mappings = NULL;
	enum proc_dotnet kind;
	size_t n_mappings = 0;
	const char *why = NULL;
	int r;

	r = proc_open((pid_t)program->pid, &proc);
	if (r == 0)
		r = proc_detect_dotnet(proc, &kind);
	if (r == 0 && kind == PROC_NOT_DOTNET) {
		rec->quiet[i] = !program->runtime;
		why = "another process has that pid now";
	}
	if (r == 0 && !why)
		r = source_read_mappings(proc, &mappings, &n_mappings);
	if (r == 0 && !why)
		why = trust(rec, i, source_proc_start(proc), mappings, n_mappings);
	source_free_mappings(mappings, n_mappings);
	if (r < 0)
		return r;
	if (r > 0 && r != PROC_E_GONE)
		why = proc_error_text(proc, r, NULL);
	else if (r == PROC_E_GONE)
		why = "it has exited, and was not attached to while it ran (clrsym perf does that)";
	if (why) {
		rec->quiet[i] |= !program->runtime;
		snprintf(rec->why[i], sizeof(rec->why[i]), "%s", why);
		return 0;
	}
	return source_attach_proc(rec->set, TAKE_PTR(proc), &rec->sources[i]);
}

static int choose_source(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);

	if (!program->sampled || !(program->runtime || program->maybe)) {
		rec->quiet[i] = true;
		return 0;
	}
	rec->sources[i] = find_source(rec, i);
	if (rec->sources[i] || *rec->why[i])
		return 0;
	if (!rec->opts->attach) {
		rec->quiet[i] = !program->runtime;
		snprintf(rec->why[i], sizeof(rec->why[i]),
			 "it was not there long enough to be attached to");
		return 0;
	}
	if (program->ended) {
		rec->quiet[i] = !program->runtime;
		snprintf(rec->why[i], sizeof(rec->why[i]),
			 "it %s, and was not attached to while it ran (clrsym perf does that)",
			 program->replaced ? "runs another program now (exec)" : "has exited");
		return 0;
	}
	if (rec->distrust) {
		rec->quiet[i] = !program->runtime;
		snprintf(rec->why[i], sizeof(rec->why[i]), "%s", rec->distrust);
		return 0;
	}
	return attach(rec, i);
}

static bool all_complete(void *data)
{
	const struct recording *rec = data;
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++)
		if (rec->sources[i] && !rec->sources[i]->complete && !rec->sources[i]->ended)
			return false;
	return true;
}

/* All that happened up to the last record of each program. */
static bool all_known(void *data)
{
	struct recording *rec = data;
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++) {
		uint64_t last = inject_program(rec->inj, i)->last_ns;

		if (rec->sources[i] && rec->convert && last &&
		    !source_knows(rec->sources[i], to_map_ns(rec, last)))
			return false;
	}
	return true;
}

/* -- code ----------------------------------------------------------------------------- */

static int keep_body(void *data, const struct codemap_body *body)
{
	struct source *s = data;
	struct codemap_info info;

	codemap_body_info(source_map(s), body, &info);
	/* what cannot be read has a name all the same */
	return info.unload == UINT64_MAX ? MIN(target_keep_body(s->target, &info), 0) : 0;
}

static bool code_known(void *data)
{
	const struct recording *rec = data;
	size_t i;

	for (i = 0; i < inject_n_programs(rec->inj); i++)
		if (rec->sources[i] && !source_knows(rec->sources[i], rec->read_ns))
			return false;
	return true;
}

/* Reads the code of what was hit, and waits until it is known whose it was. */
static int read_code(struct recording *rec)
{
	size_t i;
	int r;

	for (i = 0; i < inject_n_programs(rec->inj); i++) {
		struct source *s = rec->sources[i];

		if (!s || !s->target || s->ended || !s->complete)
			continue;
		r = inject_each_hit(rec->inj, i, source_map(s), keep_body, s);
		if (r < 0)
			return r;
	}
	rec->read_ns = clock_now_ns();
	return sources_wait(rec->set, code_known, rec, rec->read_ns + WAIT_KNOWN_NS);
}

static const uint8_t *code_bytes(void *data, const struct codemap_info *info)
{
	struct source *s = data;
	const uint8_t *bytes;

	return s->target && target_code(s->target, info, &bytes) == 0 ? bytes : NULL;
}

static int gather(struct recording *rec)
{
	size_t i, n = inject_n_programs(rec->inj);
	int r;

	rec->sources = calloc(n + 1, sizeof(*rec->sources));
	rec->why = calloc(n + 1, sizeof(*rec->why));
	rec->quiet = calloc(n + 1, sizeof(*rec->quiet));
	if (!rec->sources || !rec->why || !rec->quiet)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		r = choose_source(rec, i);
		if (r < 0)
			return r;
	}
	r = sources_wait(rec->set, all_complete, rec, clock_now_ns() + WAIT_ATTACH_NS);
	if (r == 0)
		r = sources_wait(rec->set, all_known, rec, clock_now_ns() + WAIT_KNOWN_NS);
	if (r >= 0 && rec->set->interrupted)
		return -ECANCELED;
	if (r == 0 && !rec->opts->no_code)
		r = read_code(rec);
	for (i = 0; i < n; i++) {
		struct source *s = rec->sources[i];
		struct inject_code code = {
			.map = s ? source_map(s) : NULL,
			.machine = s ? s->machine : 0,
			.bytes = rec->opts->no_code ? NULL : code_bytes,
			.data = s,
		};

		if (!s)
			continue;
		snprintf(rec->why[i], sizeof(rec->why[i]), "%s", s->why);
		if (!s->complete) {
			rec->sources[i] = NULL;
			continue;
		}
		if (rec->convert) {
			code.to_file_ns = to_file_ns;
			code.to_map_ns = to_map_ns;
			code.clock = rec;
		}
		inject_set_code(rec->inj, i, &code);
	}
	r = MIN(r, 0);
	return r < 0 ? r : sources_stop(rec->set);
}

/* -- images --------------------------------------------------------------------------- */

static int write_image(int fd, void *data)
{
	const struct elf_image *const *imagep = data;

	return elf_image_write(*imagep, fd);
}

static int put_images(struct recording *rec)
{
	size_t i, n = inject_n_images(rec->inj);
	int r = 0;

	for (i = 0; i < n && r == 0; i++) {
		const uint8_t *id;
		const char *label;
		const struct elf_image *image = inject_image(rec->inj, i, &label, &id);

		if (!image)
			continue;
		if (rec->opts->inject.image_dir) {
			r = publish_file(label, write_image, &image);
			if (r < 0)
				return say(label, r);
			continue;
		}
		if (!rec->cache)
			r = buildid_cache_open(&rec->cache, rec->opts->buildid_dir);
		if (r == 0)
			r = buildid_cache_add(rec->cache, label, id, write_image, &image);
	}
	if (r)
		log_error("%s", r < 0 ? strerror(-r) : buildid_cache_error_text(rec->cache, r));
	return r;
}

static int copy_bytes(int from, int to)
{
	_cleanup_free_ uint8_t *bytes = malloc(READ_CHUNK);
	off_t at = 0;
	ssize_t n;

	if (!bytes)
		return -ENOMEM;
	while ((n = pread(from, bytes, READ_CHUNK, at)) > 0) {
		int r = write_all(to, bytes, (size_t)n);

		if (r < 0)
			return r;
		at += n;
	}
	return n < 0 ? -errno : 0;
}

/* -- output --------------------------------------------------------------------------- */

static int rewrite_part(struct recording *rec, struct part *part, int fd)
{
	_cleanup_(perfdata_writer_freep) struct perfdata_writer *w = NULL;
	bool idle = inject_is_idle(rec->inj);
	int r = 0;

	/* what has nothing for us goes through as it is, compressed or not */
	if (fd >= 0 && idle)
		r = copy_bytes(part->fd, fd);
	else if (fd >= 0)
		r = perfdata_writer_new(&w, part->data, fd);
	rec->doing = "writing";
	if (r == 0)
		r = inject_rewrite(rec->inj, part->data, w);
	end_progress(rec);
	if (r == 0 && w)
		r = perfdata_writer_finish(w);
	if (r < 0)
		return say(rec->opts->out, r);
	return r ? say_data(rec, part, r) : 0;
}

/* A directory: parts beside each other, then all of it by one rename. */
static int rewrite_directory(struct recording *rec, const char *temp)
{
	_cleanup_close_ int dir = open(temp, O_DIRECTORY | O_CLOEXEC);
	size_t i;
	int r = 0;

	if (dir < 0)
		return say(temp, -errno);
	for (i = 0; i < rec->n_parts && r == 0; i++) {
		_cleanup_close_ int fd = openat(dir, rec->parts[i].name,
						O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

		r = fd < 0 ? say(temp, -errno) : rewrite_part(rec, &rec->parts[i], fd);
	}
	if (r == 0 && rename(temp, rec->opts->out) < 0)
		r = say(rec->opts->out, -errno);
	for (i = 0; i < rec->n_parts && r; i++)
		unlinkat(dir, rec->parts[i].name, 0);
	if (r)
		rmdir(temp);
	return r;
}

static int write_one(int fd, void *data)
{
	struct recording *rec = data;

	/* what went wrong has been said */
	return rewrite_part(rec, &rec->parts[0], fd) ? 1 : 0;
}

/* What would be replaced must be a recording that is not the input. */
static const char *bad_output(const struct recording *rec)
{
	const char *out = rec->opts->out;
	struct stat st;

	if (strcmp(out, "-") == 0)
		return perfdata_is_pipe(rec->parts[0].data)
			       ? NULL
			       : "only what was recorded to a pipe can go to one; use -o FILE";
	if (lstat(out, &st) < 0)
		return NULL;
	if (st.st_dev == rec->in_stat.st_dev && st.st_ino == rec->in_stat.st_ino)
		return "is the input, which is never touched; use another -o";
	if (rec->dir_fd >= 0)
		return "exists; remove it first";
	return S_ISREG(st.st_mode) ? NULL : "exists and is no regular file";
}

static int rewrite(struct recording *rec)
{
	_cleanup_free_ char *temp = NULL;
	size_t i;
	int r = 0;

	if (rec->opts->dry_run) {
		for (i = 0; i < rec->n_parts && r == 0; i++)
			r = rewrite_part(rec, &rec->parts[i], -1);
		return r;
	}
	if (strcmp(rec->opts->out, "-") == 0)
		return rewrite_part(rec, &rec->parts[0], STDOUT_FILENO);
	if (rec->dir_fd < 0) {
		r = publish_file(rec->opts->out, write_one, rec);
		return r < 0 ? say(rec->opts->out, r) : r;
	}
	if (asprintf(&temp, "%s.XXXXXX", rec->opts->out) < 0) {
		temp = NULL;
		return say(rec->opts->out, -ENOMEM);
	}
	if (!mkdtemp(temp))
		return say(rec->opts->out, -errno);
	return rewrite_directory(rec, temp);
}

/* -- the closing lines ---------------------------------------------------------------- */

static void report_program(struct recording *rec, size_t i)
{
	const struct inject_program *program = inject_program(rec->inj, i);
	struct inject_stats stats;
	const char *sep = "";
	size_t m;

	inject_program_stats(rec->inj, i, &stats);
	if (rec->quiet[i])
		return;
	if (!rec->sources[i]) {
		log_warn("pid %u: %" PRIu64 " samples in managed code stay without names: %s",
			 program->pid, stats.no_code, rec->why[i]);
		return;
	}
	if (*rec->why[i])
		log_warn("pid %u: %s", program->pid, rec->why[i]);
	if (!stats.unnamed)
		return;
	buf_clear(&rec->text);
	for (m = CODEMAP_HIT + 1; m < ARRAY_SIZE(stats.missed); m++) {
		if (!stats.missed[m])
			continue;
		buf_printf(&rec->text, "%s%" PRIu64 " %s", sep, stats.missed[m],
			   codemap_miss_text((enum codemap_miss)m));
		sep = ", ";
	}
	log_info("pid %u: %" PRIu64 " samples in the runtime's memory are in no method: %s",
		 program->pid, stats.unnamed, buf_cstr(&rec->text));
}

/* A recorded stream of a process that is not in the recording is a mistake. */
static void report_unused(const struct recording *rec)
{
	const struct source *s;
	size_t i;

	for (s = rec->set->list; s; s = s->next) {
		for (i = 0; s->trace && i < inject_n_programs(rec->inj); i++)
			if (inject_program(rec->inj, i)->pid == (uint32_t)s->pid)
				break;
		if (s->trace && i == inject_n_programs(rec->inj))
			log_warn("pid %d: has a recorded stream, but no record in %s "
				 "(--trace PID=FILE says whose it is)",
				 (int)s->pid, shown(rec->opts->in));
	}
}

static void report(struct recording *rec)
{
	const char *where = rec->opts->inject.image_dir ? rec->opts->inject.image_dir
			    : rec->cache                ? buildid_cache_path(rec->cache)
							: NULL;
	struct inject_stats stats;
	bool late = false, known = false;
	uint64_t first, last;
	size_t i, n = 0;

	report_unused(rec);
	inject_get_stats(rec->inj, &stats);
	inject_get_span(rec->inj, &first, &last);
	for (i = 0; rec->sources && i < inject_n_programs(rec->inj); i++) {
		const struct source *s = rec->sources[i];

		report_program(rec, i);
		n += s != NULL;
		known |= s != NULL;
		late |= s && s->target && rec->convert && s->attach_ns > to_map_ns(rec, last);
	}
	if (known && rec->no_times)
		log_warn("names are those of the last known state: %s", rec->no_times);
	else if (late)
		log_info("attached after the recording: code that was gone by then has no name "
			 "(clrsym perf attaches before)");
	for (i = 0; i < inject_n_programs(rec->inj) && rec->quiet && rec->quiet[i]; i++)
		;
	if (rec->quiet && i == inject_n_programs(rec->inj) && !n) {
		log_info("%s: no sample is in a .NET program's managed code: nothing to name",
			 rec->opts->dry_run ? "dry run" : shown(rec->opts->out));
		return;
	}
	if (rec->opts->inject.map_only) {
		log_info("%s: %" PRIu64 " mappings renamed to //anon", shown(rec->opts->out),
			 stats.rewritten);
		return;
	}
	log_info("%s: %" PRIu64 " of %" PRIu64
		 " samples in managed code have a name (%zu process%s, %" PRIu64
		 " code bodies hit, %" PRIu64 " with their code); %" PRIu64 " image%s%s%s",
		 rec->opts->dry_run ? "dry run" : shown(rec->opts->out), stats.managed,
		 stats.managed + stats.unnamed + stats.no_code, n, n == 1 ? "" : "es", stats.hit,
		 stats.with_bytes, stats.images, stats.images == 1 ? "" : "s", where ? " in " : "",
		 where ? escape_terminal(where, strlen(where)) : "");
}

/* Managed code and no name for any of it. Says so. */
static bool is_hopeless(struct recording *rec)
{
	size_t i, first = SIZE_MAX, n = 0;
	char more[64] = "";

	for (i = 0; rec->sources && i < inject_n_programs(rec->inj); i++) {
		if (rec->sources[i])
			return false;
		if (rec->quiet[i])
			continue;
		first = MIN(first, i);
		n++;
	}
	if (!n)
		return false;
	if (n > 1)
		snprintf(more, sizeof(more), " (and %zu others)", n - 1);
	log_error("pid %u%s: nothing can be named: %s", inject_program(rec->inj, first)->pid, more,
		  rec->why[first]);
	return true;
}

int recording_inject(struct sources *set, const struct recording_options *opts)
{
	_cleanup_(recording_deinit) struct recording rec = {
		.opts = opts,
		.set = set,
		.dir_fd = -1,
	};
	const char *bad;
	int r;

	buf_init(&rec.text, CAP_PROC_FILE);
	r = open_input(&rec);
	if (r < 0)
		return say(opts->in, r), EXIT_FAILED;
	if (scan(&rec))
		return EXIT_FAILED;
	bad = opts->dry_run ? NULL : bad_output(&rec);
	if (bad) {
		log_error("%s: %s", shown(opts->out), bad);
		return EXIT_FAILED;
	}
	set_clock(&rec);
	r = opts->inject.map_only ? 0 : gather(&rec);
	if (r == 0 && opts->strict && is_hopeless(&rec))
		return EXIT_FAILED;
	if (r == 0)
		r = inject_plan(rec.inj);
	if (r)
		return say_data(&rec, &rec.parts[0], r), EXIT_FAILED;
	if (!opts->dry_run && put_images(&rec))
		return EXIT_FAILED;
	if (rewrite(&rec))
		return EXIT_FAILED;
	report(&rec);
	return EXIT_DONE;
}
