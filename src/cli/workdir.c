/* SPDX-License-Identifier: Apache-2.0 */
/* The folder that perf writes to: see workdir.h. */
#include "cli/workdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>

#include "base/escape.h"
#include "base/log.h"

struct workdir {
	char *out_dir; /* real path */
	char *name;
	char *path; /* of the folder; in out_dir, or not */
	char *perf_output;
	int fd;
	bool beside;
	bool kept; /* something is in it that nobody has yet */
};

/* Can nobody but root and us exchange what is at this path? */
static bool is_safe(const char *path)
{
	_cleanup_free_ char *p = strdup(path);
	char *slash;
	struct stat st;

	while (p) {
		if (stat(*p ? p : "/", &st) < 0 || !S_ISDIR(st.st_mode))
			return false;
		if (st.st_uid && st.st_uid != geteuid())
			return false;
		if ((st.st_mode & (S_IWGRP | S_IWOTH)) && !(st.st_mode & S_ISVTX))
			return false;
		slash = strrchr(p, '/');
		if (!*p || !slash)
			return true;
		*slash = '\0';
	}
	return false;
}

static int make(struct workdir *w, const char *base)
{
	struct stat st;

	if (asprintf(&w->path, "%s/.clrsym-perf.XXXXXX", base) < 0) {
		w->path = NULL;
		return -ENOMEM;
	}
	if (!mkdtemp(w->path)) {
		free(TAKE_PTR(w->path));
		return -errno;
	}
	w->fd = open(w->path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (w->fd < 0 || fstat(w->fd, &st) < 0)
		return -errno;
	return st.st_uid == geteuid() ? 0 : -EPERM;
}

/* The output's folder and name; a link is followed, to where its file is or would be. */
static int split(struct workdir *w, const char *output)
{
	_cleanup_free_ char *real = realpath(output, NULL);
	_cleanup_free_ char *a = strdup(real ? real : output);
	_cleanup_free_ char *b = strdup(real ? real : output);
	struct stat st;

	if (!a || !b)
		return -ENOMEM;
	if (real && stat(real, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
		return -EEXIST;
	w->out_dir = realpath(dirname(a), NULL);
	if (!w->out_dir)
		return -errno;
	w->name = strdup(basename(b));
	return w->name ? 0 : -ENOMEM;
}

int workdir_new(struct workdir **outp, const char *output)
{
	_cleanup_(workdir_freep) struct workdir *w = calloc(1, sizeof(*w));
	const char *tmp = getenv("TMPDIR");
	int r;

	if (!w)
		return -ENOMEM;
	w->fd = -1;
	r = split(w, output);
	if (r < 0)
		return r;
	w->beside = is_safe(w->out_dir);
	if (!w->beside && (!tmp || *tmp != '/' || !is_safe(tmp)))
		tmp = "/var/tmp";
	r = make(w, w->beside ? w->out_dir : tmp);
	if (r < 0)
		return r;
	if (asprintf(&w->perf_output, "%s/%s", w->path, w->name) < 0) {
		w->perf_output = NULL;
		return -ENOMEM;
	}
	*outp = TAKE_PTR(w);
	return 0;
}

/* -- removing ------------------------------------------------------------------------- */

/* Everything in a folder, by fd; takes it over. Links are removed, never followed. */
static void empty(int fd)
{
	DIR *dir = fdopendir(fd);
	struct dirent *entry;

	if (!dir) {
		fd_close(fd);
		return;
	}
	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;
		int sub;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
		    unlinkat(dirfd(dir), name, 0) == 0)
			continue;
		sub = openat(dirfd(dir), name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (sub < 0)
			continue;
		empty(sub);
		unlinkat(dirfd(dir), name, AT_REMOVEDIR);
	}
	closedir(dir);
}

void workdir_free(struct workdir *w)
{
	if (!w)
		return;
	if (w->fd >= 0 && !w->kept) {
		empty(w->fd);
		rmdir(w->path);
	} else {
		fd_close(w->fd);
	}
	free(w->out_dir);
	free(w->name);
	free(w->path);
	free(w->perf_output);
	free(w);
}

const char *workdir_perf_output(const struct workdir *w)
{
	return w->perf_output;
}

/* -- delivering ----------------------------------------------------------------------- */

/* perf keeps the recording before as .old, and so does this: a file, or a folder with its parts. */
static int keep_old(const char *to)
{
	_cleanup_free_ char *old = NULL;
	struct stat st;

	if (lstat(to, &st) < 0)
		return 0;
	if (asprintf(&old, "%s.old", to) < 0) {
		old = NULL;
		return -ENOMEM;
	}
	if (S_ISDIR(st.st_mode)) {
		int fd = open(old, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

		/* only what is a recording itself */
		if (fd >= 0 && faccessat(fd, "data", F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
			empty(fd);
			rmdir(old);
		} else {
			fd_close(fd);
		}
	}
	return rename(to, old) < 0 ? -errno : 0;
}

/* As it is, under the name it would have had. */
static bool hand_over(const struct workdir *w, const char *from, const char *to)
{
	if (!w->beside || rename(from, to) < 0)
		return false;
	log_warn("%s: as perf wrote it, without names", escape_terminal(to, strlen(to)));
	return true;
}

static int deliver_one(struct workdir *w, const char *name,
		       int (*deliver)(void *data, const char *from, const char *to), void *data)
{
	_cleanup_free_ char *from = NULL;
	_cleanup_free_ char *to = NULL;
	int r;

	if (asprintf(&from, "%s/%s", w->path, name) < 0) {
		from = NULL;
		return -ENOMEM;
	}
	if (asprintf(&to, "%s/%s", w->out_dir, name) < 0) {
		to = NULL;
		return -ENOMEM;
	}
	r = keep_old(to);
	if (r < 0)
		log_error("%s: the recording before cannot be kept: %s",
			  escape_terminal(to, strlen(to)), strerror(-r));
	else
		r = deliver(data, from, to);
	return r == 0 || hand_over(w, from, to) ? r : -1;
}

int workdir_deliver(struct workdir *w, int (*deliver)(void *data, const char *from, const char *to),
		    void *data, unsigned int *np)
{
	struct dirent **entries;
	size_t len = strlen(w->name);
	int i, n, failed = 0;

	*np = 0;
	n = scandirat(w->fd, ".", &entries, NULL, alphasort);
	if (n < 0)
		return -errno;
	for (i = 0; i < n; i++) {
		const char *name = entries[i]->d_name;

		/* the name itself, or with the time that --switch-output adds */
		if (strncmp(name, w->name, len) == 0 && (!name[len] || name[len] == '.')) {
			++*np;
			if (deliver_one(w, name, deliver, data)) {
				struct stat st;

				failed++;
				w->kept |= fstatat(w->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
			}
		}
		free(entries[i]);
	}
	free(entries);
	if (w->kept)
		log_error("what perf wrote is in %s", escape_terminal(w->path, strlen(w->path)));
	return failed;
}
