/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recording's files. The input is opened once and only read; a pipe is spooled to a file without
 * a name first, so that memory stays flat and everything can be read twice. The output appears by
 * rename.
 */
#include "cli/recording_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/signalfd.h>

#include "base/caps.h"
#include "base/number.h"
#include "cli/publish.h"

/* -- opening -------------------------------------------------------------------------- */

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

int recording_spool_new(void)
{
	const char *dir = getenv("TMPDIR");
	int fd;

	fd = open(dir && *dir == '/' ? dir : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/*
 * Waits for input. The ^C that ends a recording goes to all of a pipeline: the first one is perf's,
 * and its last words are still to come. Returns 1 when there is some, 0, or -errno.
 */
static int wait_for_input(struct sources *set, int fd, bool *stopp)
{
	struct pollfd fds[2] = { { .fd = fd, .events = POLLIN },
				 { .fd = set->signal_fd, .events = POLLIN } };
	struct signalfd_siginfo info;

	if (poll(fds, 2, -1) < 0)
		return errno == EINTR ? 0 : -errno;
	if (!fds[1].revents || read(set->signal_fd, &info, sizeof(info)) != sizeof(info))
		return fds[0].revents != 0;
	if (*stopp || info.ssi_signo != SIGINT)
		return -ECANCELED;
	*stopp = true;
	return 0;
}

static int spool(struct sources *set, int from)
{
	_cleanup_free_ uint8_t *bytes = malloc(READ_CHUNK);
	_cleanup_close_ int fd = -1;
	bool stop = false;
	ssize_t n;
	int r;

	if (!bytes)
		return -ENOMEM;
	fd = recording_spool_new();
	if (fd < 0)
		return fd;
	for (;;) {
		r = wait_for_input(set, from, &stop);
		if (r < 0)
			return r;
		if (r == 0)
			continue;
		n = read(from, bytes, READ_CHUNK);
		if (n < 0 && (errno == EINTR || errno == EAGAIN))
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
				    O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		struct stat st;

		if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))) {
			close(fd);
			r = -EINVAL;
		}

		if (r == 0)
			r = fd < 0 ? -errno : add_part(rec, entries[i]->d_name, fd);
		free(entries[i]);
	}
	free(entries);
	return r;
}

int recording_open(struct recording *rec)
{
	const char *in = rec->opts->in;
	int fd;

	fd = strcmp(in, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
				  : open(in, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &rec->in_stat) < 0) {
		fd_close(fd);
		return -errno;
	}
	if (S_ISDIR(rec->in_stat.st_mode)) {
		rec->dir_fd = fd;
		return open_directory(rec);
	}
	if (!S_ISREG(rec->in_stat.st_mode)) {
		int spooled = -ESPIPE; /* a device has no end */

		if (S_ISFIFO(rec->in_stat.st_mode) || S_ISSOCK(rec->in_stat.st_mode))
			spooled = spool(rec->set, fd);

		close(fd);
		if (spooled < 0)
			return spooled;
		fd = spooled;
	}
	return add_part(rec, NULL, fd);
}

void recording_close(struct recording *rec)
{
	size_t i;

	for (i = rec->n_parts; i--;) { /* parts before what they are parts of */
		perfdata_free(rec->parts[i].data);
		fd_close(rec->parts[i].fd);
		free(rec->parts[i].name);
	}
	free(rec->parts);
	fd_close(rec->dir_fd);
}

/* -- output --------------------------------------------------------------------------- */

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
	recording_progress_end(rec);
	if (r == 0 && w)
		r = perfdata_writer_finish(w);
	if (r < 0)
		return recording_say(rec->opts->out, r);
	return r ? recording_say_data(rec, part, r) : 0;
}

/* A directory: parts beside each other, then all of it by one rename. */
static int rewrite_directory(struct recording *rec, const char *temp)
{
	_cleanup_close_ int dir = open(temp, O_DIRECTORY | O_CLOEXEC);
	size_t i;
	int r = 0;

	if (dir < 0)
		return recording_say(temp, -errno);
	for (i = 0; i < rec->n_parts && r == 0; i++) {
		_cleanup_close_ int fd = openat(dir, rec->parts[i].name,
						O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

		r = fd < 0 ? recording_say(temp, -errno) : rewrite_part(rec, &rec->parts[i], fd);
	}
	if (r == 0 && rename(temp, rec->opts->out) < 0)
		r = recording_say(rec->opts->out, -errno);
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

/* What would be replaced must be a plain file, and not the input. */
const char *recording_bad_output(const struct recording *rec)
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

int recording_rewrite(struct recording *rec)
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
		return r < 0 ? recording_say(rec->opts->out, r) : r;
	}
	if (asprintf(&temp, "%s.XXXXXX", rec->opts->out) < 0) {
		temp = NULL;
		return recording_say(rec->opts->out, -ENOMEM);
	}
	if (!mkdtemp(temp))
		return recording_say(rec->opts->out, -errno);
	return rewrite_directory(rec, temp);
}
