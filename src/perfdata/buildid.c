/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing into perf's build-id cache.
 *
 * We may be root, and the directory may be anybody's. What keeps this safe:
 *
 *  - Every directory on the way, the cache's own included, is opened by name below the one
 *    before it, never through a link, and must be ours, of one file system, and writable by nobody
 *    else. So nobody but our own user can exchange anything below, and what he does harms himself.
 *  - Only the parents of the cache may be links: they are the caller's words.
 *  - A label comes from a target (a DLL, a mapping). It becomes one file name of harmless
 *    characters that does not begin with a dot, so it is not "..", nor one of our temporary names.
 *
 * What makes runs at the same time harmless, without a lock that could be held for ever:
 *
 *  - An image is written to a temporary file in clrsym/ and gets its name by rename; the link
 *    is made when the image is in place. What has its name is whole.
 *  - Ids are hashes of content: whoever was first has put in the same bytes. A link that leads to
 *    an image (perf's own too, after perf buildid-cache -a) is left as it is, one that leads
 *    nowhere is replaced, and anything but a link is somebody's, for him to remove.
 *  - A prune may take directories away while they are filled. Then it is done again.
 *
 * There is no fsync: it would cost more than all the rest, for a cache. After a power cut an
 * image may be empty; an empty one counts as none.
 *
 * perf buildid-cache -l and -P pass over our entries: they list what has its original at the path
 * that the link spells, and there is none.
 */
#include "perfdata/buildid.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include "base/clock.h"
#include "perfdata/perfconfig.h"

#define OURS  "clrsym"
#define LINKS ".build-id"
/* What leads from a link in LINKS/xx to the top. */
#define TO_TOP     "../../"

#define LABEL_MAX  100u
#define HEX_LENGTH (2 * BUILDID_SIZE)

/*
 * A prune at the same time can disturb an add once a directory; and it may be stopped by the
 * scheduler between two of its steps, for as long as others run: then only waiting helps.
 */
#define CAP_TRIES   1024u
#define QUICK_TRIES 16u
/* Files without their names yet are left alone so long. */
#define TEMP_SECONDS 60
/* Ours are clrsym/NAME/ID/elf; what is deeper is not of our making. */
#define CAP_DEPTH 8u

struct buildid_cache {
	char *path; /* NULL if there is none */
	int fd;     /* O_PATH, -1 if refused */
	dev_t dev;

	int error; /* the first code of a call, and what there is to say about it */
	char text[PATH_MAX + 256];
};

#define REMEDY "name another cache with --buildid-dir"

/* -- Errors ---------------------------------------------------------------------------- */

/* A place in the cache, for messages: the first len characters of rel, which is below the path. */
struct place {
	const char *rel;
	int len;
};

static struct place place_of(const char *rel)
{
	return (struct place){ rel, (int)strlen(rel) };
}

static int fail(struct buildid_cache *c, struct place at, int error, const char *fmt, ...)
	PRINTF_LIKE(4, 5);

/* Notes "PATH/REL" and what follows as the reason of a code, if it is the first. */
static int fail(struct buildid_cache *c, struct place at, int error, const char *fmt, ...)
{
	va_list args;
	int n;

	if (c->error)
		return error;
	n = snprintf(c->text, sizeof(c->text), "%s%s%.*s", c->path, at.len ? "/" : "", at.len,
		     at.rel);
	if (n < 0 || (size_t)n >= sizeof(c->text))
		n = 0;
	va_start(args, fmt);
	vsnprintf(c->text + n, sizeof(c->text) - (size_t)n, fmt, args);
	va_end(args);
	c->error = error;
	return error;
}

static int fail_errno(struct buildid_cache *c, struct place at, int err)
{
	switch (err) {
	case ENOMEM:
	case EMFILE:
	case ENFILE: return -err;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		return fail(c, at, BUILDID_E_NO_SPACE, ": %s: make room, or " REMEDY,
			    strerror(err));
	case ENOTDIR:
	case ELOOP:
	case EISDIR:
	case EEXIST:
		/* the cache itself may be /dev/null, perf's way to have none: nothing to remove */
		return fail(c, at, BUILDID_E_BLOCKED, " is %s" REMEDY,
			    at.len ? "a link, or not what should be there: remove it, or "
				   : "a link or no directory: ");
	default: return fail(c, at, BUILDID_E_DENIED, ": %s: " REMEDY, strerror(err));
	}
}

const char *buildid_cache_path(const struct buildid_cache *cache)
{
	return cache->path ? cache->path : "";
}

const char *buildid_cache_error_text(const struct buildid_cache *cache, int error)
{
	if (error < 0)
		return strerror(-error);
	return error == cache->error ? cache->text : "no error";
}

/* -- Directories ----------------------------------------------------------------------- */

/* Is an open directory one that only we can change? */
static int check_dir(struct buildid_cache *c, struct place at, int fd, struct stat *st)
{
	if (fstat(fd, st) < 0)
		return fail_errno(c, at, errno);
	if (st->st_uid != geteuid())
		return fail(
			c, at, BUILDID_E_FOREIGN,
			" belongs to uid %u, and this runs as uid %u: run as that user, or " REMEDY,
			(unsigned int)st->st_uid, (unsigned int)geteuid());
	if (st->st_mode & (S_IWGRP | S_IWOTH))
		return fail(c, at, BUILDID_E_FOREIGN,
			    " is writable by others (mode %04o): chmod go-w, or " REMEDY,
			    (unsigned int)st->st_mode & 07777);
	if (c->fd >= 0 && st->st_dev != c->dev)
		return fail(c, at, BUILDID_E_BLOCKED,
			    " is another file system: unmount it, or " REMEDY);
	return 0;
}

/* Mode 0700, whatever umask and default ACLs made of it; it may not even be readable now. */
static int set_mode(struct buildid_cache *c, struct place at, int fd)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (chmod(path, 0700) == 0)
		return 0;
	/* taken away since it was opened */
	return errno == ENOENT ? -EAGAIN : fail_errno(c, at, errno);
}

/*
 * One directory below another; *fdp is -1 if it is not there and not to be made. -EAGAIN: it, or
 * the one above, was taken away meanwhile.
 */
static int open_dir(struct buildid_cache *c, struct place at, int above_fd, const char *name,
		    bool make, int *fdp)
{
	const int flags = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	_cleanup_close_ int fd = -1;
	bool made = false;
	struct stat st;
	int r;

	*fdp = -1;
	fd = openat(above_fd, name, flags);
	if (fd < 0 && errno == ENOENT) {
		if (!make)
			return 0;
		made = mkdirat(above_fd, name, 0700) == 0;
		if (!made && errno != EEXIST)
			return errno == ENOENT ? -EAGAIN : fail_errno(c, at, errno);
		fd = openat(above_fd, name, flags);
	}
	if (fd < 0)
		return errno == ENOENT ? -EAGAIN : fail_errno(c, at, errno);
	r = check_dir(c, at, fd, &st);
	if (r)
		return r;
	if (made && (st.st_mode & 07777) != 0700) {
		r = set_mode(c, at, fd);
		if (r)
			return r;
	}
	*fdp = TAKE_FD(fd);
	return 0;
}

/* A directory by its path below the cache, step by step. As open_dir(). */
static int walk(struct buildid_cache *c, const char *rel, bool make, int *fdp)
{
	_cleanup_close_ int above_fd = -1;
	const char *p = rel;
	char name[NAME_MAX + 1];
	int fd, r;

	*fdp = -1;
	for (;;) {
		size_t n = strcspn(p, "/");
		struct place at = { rel, (int)(p + n - rel) };

		if (n == 0 || n > NAME_MAX || (p[0] == '.' && (n == 1 || (n == 2 && p[1] == '.'))))
			return fail_errno(c, at, ENOTDIR);
		memcpy(name, p, n);
		name[n] = '\0';
		r = open_dir(c, at, above_fd < 0 ? c->fd : above_fd, name, make, &fd);
		if (r || fd < 0)
			return r;
		fd_close(above_fd);
		above_fd = fd;
		if (!p[n])
			break;
		p += n + 1;
	}
	*fdp = TAKE_FD(above_fd);
	return 0;
}

/* -- Opening --------------------------------------------------------------------------- */

static int find_path(struct buildid_cache *c, const char *dir)
{
	const char *home = getenv("HOME");
	size_t n;
	int r = 0;

	if (dir && *dir) {
		c->path = strdup(dir);
		r = c->path ? 0 : -ENOMEM;
	} else {
		r = perfconfig_buildid_dir(&c->path);
	}
	if (r)
		return r;
	if (!c->path) {
		if (!home || !*home) {
			snprintf(c->text, sizeof(c->text),
				 "there is no $HOME with perf's build-id cache: name one with "
				 "--buildid-dir");
			c->error = BUILDID_E_NO_HOME;
			return BUILDID_E_NO_HOME;
		}
		if (asprintf(&c->path, "%s/.debug", home) < 0) {
			c->path = NULL;
			return -ENOMEM;
		}
	}
	/* "dir/" would follow a link */
	for (n = strlen(c->path); n > 1 && c->path[n - 1] == '/'; n--)
		c->path[n - 1] = '\0';
	return 0;
}

/* The directory that the cache is in. Nothing is made for us where somebody else is at home. */
static int open_parent(struct buildid_cache *c, size_t dir_len, int *fdp)
{
	_cleanup_free_ char *dir = NULL;
	_cleanup_close_ int fd = -1;
	struct stat st;

	/* with its slash; "" is the working directory */
	dir = dir_len ? strndup(c->path, dir_len) : strdup(".");
	if (!dir)
		return -ENOMEM;
	fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return fail_errno(c, place_of(""), errno);
	if (st.st_uid != geteuid() && st.st_uid != 0)
		return fail(c, place_of(""), BUILDID_E_FOREIGN,
			    " would be made by uid %u in a directory of uid %u: run as that user, "
			    "or " REMEDY,
			    (unsigned int)geteuid(), (unsigned int)st.st_uid);
	*fdp = TAKE_FD(fd);
	return 0;
}

static int open_cache(struct buildid_cache *c)
{
	const char *slash = strrchr(c->path, '/');
	const char *name = slash ? slash + 1 : c->path;
	_cleanup_close_ int above_fd = -1;
	struct stat st;
	int fd, r;

	r = open_dir(c, place_of(""), AT_FDCWD, c->path, false, &fd);
	if (r)
		return r;
	if (fd < 0) {
		r = open_parent(c, (size_t)(name - c->path), &above_fd);
		if (r)
			return r;
		r = open_dir(c, place_of(""), above_fd, name, true, &fd);
		if (r)
			return r == -EAGAIN ? fail_errno(c, place_of(""), ENOENT) : r;
	}
	c->fd = fd;
	if (fstat(fd, &st) < 0)
		return fail_errno(c, place_of(""), errno);
	c->dev = st.st_dev;
	return 0;
}

int buildid_cache_open(struct buildid_cache **outp, const char *dir)
{
	_cleanup_(buildid_cache_freep) struct buildid_cache *c = calloc(1, sizeof(*c));
	int r;

	if (!c)
		return -ENOMEM;
	c->fd = -1;
	r = find_path(c, dir);
	if (!r)
		r = open_cache(c);
	if (r < 0)
		return r;
	*outp = TAKE_PTR(c);
	return r;
}

void buildid_cache_free(struct buildid_cache *cache)
{
	if (!cache)
		return;
	fd_close(cache->fd);
	free(cache->path);
	free(cache);
}

/* -- Adding ---------------------------------------------------------------------------- */

/* Where an image goes, as texts. */
struct slot {
	char hex[HEX_LENGTH + 1];
	char label[LABEL_MAX + 1];
	char label_dir[sizeof(OURS) + 1 + LABEL_MAX];            /* clrsym/NAME */
	char dir[sizeof(OURS) + 1 + LABEL_MAX + 1 + HEX_LENGTH]; /* clrsym/NAME/ID */
	char target[sizeof(TO_TOP) + sizeof(OURS) + 1 + LABEL_MAX + 1 + HEX_LENGTH];
	char link_dir[sizeof(LINKS) + 3];                   /* .build-id/xx */
	char link_path[sizeof(LINKS) + 1 + HEX_LENGTH + 1]; /* .build-id/xx/rest */
	const char *link;                                   /* its last part */
};

static void make_label(char label[LABEL_MAX + 1], const char *name)
{
	size_t i;

	for (i = 0; i < LABEL_MAX && name[i]; i++) {
		bool good = (name[i] >= 'a' && name[i] <= 'z') ||
			    (name[i] >= 'A' && name[i] <= 'Z') ||
			    (name[i] >= '0' && name[i] <= '9') || strchr("+-_", name[i]) ||
			    (name[i] == '.' && i > 0);

		label[i] = good ? name[i] : '_';
	}
	if (i == 0)
		label[i++] = '_';
	label[i] = '\0';
}

static void make_slot(struct slot *s, const char *name, const uint8_t id[BUILDID_SIZE])
{
	size_t i;

	for (i = 0; i < BUILDID_SIZE; i++)
		snprintf(s->hex + 2 * i, 3, "%02x", id[i]);
	make_label(s->label, name);
	snprintf(s->label_dir, sizeof(s->label_dir), OURS "/%s", s->label);
	snprintf(s->dir, sizeof(s->dir), "%s/%s", s->label_dir, s->hex);
	snprintf(s->target, sizeof(s->target), TO_TOP "%s", s->dir);
	snprintf(s->link_dir, sizeof(s->link_dir), LINKS "/%.2s", s->hex);
	snprintf(s->link_path, sizeof(s->link_path), "%s/%s", s->link_dir, s->hex + 2);
	s->link = s->hex + 2;
}

/* Is a whole image in that directory? */
static bool has_image(int dir_fd)
{
	struct stat st;

	return fstatat(dir_fd, "elf", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
	       st.st_size > 0;
}

enum entry {
	ENTRY_NONE,
	ENTRY_SERVES, /* leads to an image */
	ENTRY_STALE,  /* a link to nothing */
};

/* What stands under the id now? 0, -errno or a code. */
static int look(struct buildid_cache *c, const struct slot *s, enum entry *entryp)
{
	_cleanup_close_ int links_fd = -1, dir_fd = -1;
	char target[PATH_MAX];
	ssize_t n;
	int r;

	*entryp = ENTRY_NONE;
	r = walk(c, s->link_dir, false, &links_fd);
	if (r || links_fd < 0)
		return r;
	n = readlinkat(links_fd, s->link, target, sizeof(target) - 1);
	if (n < 0) {
		if (errno == ENOENT)
			return 0;
		return fail_errno(c, place_of(s->link_path), errno == EINVAL ? EEXIST : errno);
	}
	target[n] = '\0';
	*entryp = ENTRY_STALE;
	if (strncmp(target, TO_TOP, strlen(TO_TOP)) != 0)
		return 0;
	r = walk(c, target + strlen(TO_TOP), false, &dir_fd);
	if (r < 0)
		return r;
	/* a link to what is refused is as good as one to nothing */
	c->error = 0;
	if (dir_fd >= 0 && has_image(dir_fd))
		*entryp = ENTRY_SERVES;
	return 0;
}

/* O_EXCL and its like see to it that it is new; so it need not be a secret. */
static void make_temp_name(char name[32])
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) != (ssize_t)sizeof(random))
		random = clock_now_ns();
	snprintf(name, 32, ".tmp-%016llx", (unsigned long long)random);
}

/* A new file with the image, named temp. */
static int write_temp(struct buildid_cache *c, const struct slot *s, int ours_fd, const char *temp,
		      int (*write_fn)(int fd, void *data), void *data)
{
	struct place at = place_of(s->dir);
	_cleanup_close_ int fd = -1;
	int r;

	fd = openat(ours_fd, temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno == ENOENT ? -EAGAIN : fail_errno(c, at, errno);
	if (fchmod(fd, 0600) < 0)
		return fail_errno(c, at, errno);
	r = write_fn(fd, data);
	if (r)
		return fail_errno(c, at, -r);
	/* NFS says only now that the disk is full */
	return close(TAKE_FD(fd)) < 0 ? fail_errno(c, at, errno) : 0;
}

static int put_image(struct buildid_cache *c, const struct slot *s,
		     int (*write_fn)(int fd, void *data), void *data)
{
	_cleanup_close_ int ours_fd = -1, dir_fd = -1;
	char temp[32];
	int r;

	r = walk(c, s->dir, false, &dir_fd);
	if (r)
		return r;
	if (dir_fd >= 0 && has_image(dir_fd))
		return 0;
	r = walk(c, OURS, true, &ours_fd);
	if (r)
		return r;
	make_temp_name(temp);
	r = write_temp(c, s, ours_fd, temp, write_fn, data);
	/* the directory just before it is filled: a prune takes empty ones away */
	dir_fd = fd_close(dir_fd);
	if (!r)
		r = walk(c, s->dir, true, &dir_fd);
	if (!r && renameat(ours_fd, temp, dir_fd, "elf") < 0)
		r = errno == ENOENT ? -EAGAIN : fail_errno(c, place_of(s->dir), errno);
	if (r)
		unlinkat(ours_fd, temp, 0);
	return r;
}

/* A link of another name, then renamed: there is no moment without one. */
static int replace_link(struct buildid_cache *c, const struct slot *s, int links_fd)
{
	struct place at = place_of(s->link_path);
	char temp[32];
	int r = 0;

	make_temp_name(temp);
	if (symlinkat(s->target, links_fd, temp) < 0)
		return errno == ENOENT ? -EAGAIN : fail_errno(c, at, errno);
	if (renameat(links_fd, temp, links_fd, s->link) < 0) {
		r = errno == ENOENT ? -EAGAIN : fail_errno(c, at, errno);
		unlinkat(links_fd, temp, 0);
	}
	return r;
}

static int put_link(struct buildid_cache *c, const struct slot *s)
{
	_cleanup_close_ int links_fd = -1;
	enum entry entry;
	int r;

	r = walk(c, s->link_dir, true, &links_fd);
	if (r)
		return r;
	if (symlinkat(s->target, links_fd, s->link) == 0)
		return 0;
	if (errno != EEXIST)
		return errno == ENOENT ? -EAGAIN : fail_errno(c, place_of(s->link_path), errno);
	r = look(c, s, &entry);
	if (r || entry == ENTRY_SERVES)
		return r;
	return entry == ENTRY_STALE ? replace_link(c, s, links_fd) : -EAGAIN;
}

static void remove_empty(struct buildid_cache *c, int above_fd, const char *name)
{
	_cleanup_close_ int fd = -1;

	/* not one that was refused */
	if (open_dir(c, place_of(name), above_fd, name, false, &fd) == 0 && fd >= 0)
		unlinkat(above_fd, name, AT_REMOVEDIR);
}

/* After a failure: takes away the directories that were made for nothing. */
static void tidy(struct buildid_cache *c, const struct slot *s)
{
	_cleanup_close_ int ours_fd = -1, label_fd = -1;

	if (walk(c, OURS, false, &ours_fd) != 0 || ours_fd < 0)
		return;
	if (walk(c, s->label_dir, false, &label_fd) == 0 && label_fd >= 0)
		remove_empty(c, label_fd, s->hex);
	remove_empty(c, ours_fd, s->label);
	remove_empty(c, c->fd, OURS);
}

static int add_once(struct buildid_cache *c, const struct slot *s,
		    int (*write_fn)(int fd, void *data), void *data)
{
	enum entry entry;
	int r;

	r = look(c, s, &entry);
	if (r || entry == ENTRY_SERVES)
		return r;
	r = put_image(c, s, write_fn, data);
	if (r)
		return r;
	return put_link(c, s);
}

int buildid_cache_add(struct buildid_cache *cache, const char *name, const uint8_t id[BUILDID_SIZE],
		      int (*write)(int fd, void *data), void *data)
{
	struct slot slot;
	unsigned int i;
	int r = -EAGAIN;

	cache->error = 0;
	make_slot(&slot, name, id);
	for (i = 0; i < CAP_TRIES && r == -EAGAIN; i++) {
		if (i > QUICK_TRIES)
			nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
		r = add_once(cache, &slot, write, data);
	}
	if (r == -EAGAIN)
		r = fail_errno(cache, place_of(slot.dir), ENOENT);
	if (r)
		tidy(cache, &slot);
	return r;
}

/* -- Removing -------------------------------------------------------------------------- */

struct prune {
	struct buildid_cache *cache;
	size_t n_images;
	uint64_t bytes;
	int error; /* the first one; the rest is removed all the same */
};

static void prune_error(struct prune *prune, int r)
{
	if (!prune->error)
		prune->error = r;
}

DEFINE_CLEANUP(DIR *, closedir)

#define _cleanup_dir_ _cleanup_(closedirp)

/* To read a directory that was opened without the right to; NULL if it is removed by now. */
static int list(struct buildid_cache *c, struct place at, int dir_fd, DIR **outp)
{
	_cleanup_close_ int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	*outp = fd < 0 ? NULL : fdopendir(fd);
	if (!*outp)
		return errno == ENOENT ? 0 : fail_errno(c, at, errno);
	TAKE_FD(fd);
	return 0;
}

/* The next name but "." and ".."; NULL at the end. */
static const char *next_name(DIR *dir)
{
	const struct dirent *e;

	while ((e = readdir(dir))) {
		if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			return e->d_name;
	}
	return NULL;
}

static void prune_file(struct prune *prune, struct place at, int dir_fd, const char *name,
		       const struct stat *st)
{
	if (unlinkat(dir_fd, name, 0) < 0) {
		if (errno != ENOENT)
			prune_error(prune, fail_errno(prune->cache, at, errno));
		return;
	}
	if (S_ISREG(st->st_mode)) {
		prune->bytes += (uint64_t)st->st_size;
		if (strcmp(name, "elf") == 0)
			prune->n_images++;
	}
}

/* A directory that is not empty any more is being filled by somebody just now. */
static void prune_dir(struct prune *prune, struct place at, int above_fd, const char *name)
{
	if (unlinkat(above_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT && errno != ENOTEMPTY &&
	    errno != EEXIST)
		prune_error(prune, fail_errno(prune->cache, at, errno));
}

/* All that is in a directory of ours; links are removed, not followed. */
static void prune_tree(struct prune *prune, struct place at, int dir_fd, unsigned int depth)
{
	_cleanup_dir_ DIR *dir = NULL;
	const char *name;
	struct stat st;
	int r;

	r = depth > CAP_DEPTH ? fail_errno(prune->cache, at, ELOOP)
			      : list(prune->cache, at, dir_fd, &dir);
	if (r)
		prune_error(prune, r);
	if (r || !dir)
		return;
	while ((name = next_name(dir))) {
		_cleanup_close_ int fd = -1;

		if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			continue;
		/* one that is being written; what a crash left is older */
		if (name[0] == '.' && st.st_mtime > time(NULL) - TEMP_SECONDS)
			continue;
		if (!S_ISDIR(st.st_mode)) {
			prune_file(prune, at, dir_fd, name, &st);
			continue;
		}
		r = open_dir(prune->cache, at, dir_fd, name, false, &fd);
		if (r) {
			prune_error(prune, r);
		} else if (fd >= 0) {
			prune_tree(prune, at, fd, depth + 1);
			prune_dir(prune, at, dir_fd, name);
		}
	}
}

/* Does the link lead below clrsym/? That is so of a temporary one left by a crash, too. */
static bool is_our_link(int dir_fd, const char *name)
{
	static const char start[] = TO_TOP OURS "/";
	char target[sizeof(start)];

	return readlinkat(dir_fd, name, target, sizeof(target)) == (ssize_t)sizeof(target) &&
	       memcmp(target, start, sizeof(start) - 1) == 0;
}

/* Our links in one .build-id/xx; the directory, too, if that was all. */
static void prune_link_dir(struct prune *prune, int links_fd, const char *name)
{
	struct place at = place_of(LINKS);
	_cleanup_close_ int fd = -1;
	_cleanup_dir_ DIR *dir = NULL;
	const char *link;
	bool removed = false;
	int r;

	r = open_dir(prune->cache, at, links_fd, name, false, &fd);
	if (!r && fd >= 0)
		r = list(prune->cache, at, fd, &dir);
	if (r)
		prune_error(prune, r);
	if (!dir)
		return;
	while ((link = next_name(dir))) {
		if (!is_our_link(fd, link))
			continue;
		if (unlinkat(fd, link, 0) == 0)
			removed = true;
		else if (errno != ENOENT)
			prune_error(prune, fail_errno(prune->cache, at, errno));
	}
	if (removed)
		prune_dir(prune, at, links_fd, name);
}

static bool is_link_dir(const char *name)
{
	return strlen(name) == 2 && strspn(name, "0123456789abcdef") == 2;
}

static void prune_links(struct prune *prune)
{
	_cleanup_close_ int links_fd = -1;
	_cleanup_dir_ DIR *dir = NULL;
	const char *name;
	int r;

	r = walk(prune->cache, LINKS, false, &links_fd);
	if (!r && links_fd >= 0)
		r = list(prune->cache, place_of(LINKS), links_fd, &dir);
	if (r)
		prune_error(prune, r);
	if (!dir)
		return;
	while ((name = next_name(dir))) {
		if (is_link_dir(name))
			prune_link_dir(prune, links_fd, name);
	}
}

static void prune_images(struct prune *prune)
{
	_cleanup_close_ int fd = -1;
	int r;

	r = walk(prune->cache, OURS, false, &fd);
	if (r)
		prune_error(prune, r);
	if (r || fd < 0)
		return;
	prune_tree(prune, place_of(OURS), fd, 1);
	prune_dir(prune, place_of(OURS), prune->cache->fd, OURS);
}

int buildid_cache_prune(struct buildid_cache *cache, size_t *n_imagesp, uint64_t *bytesp)
{
	struct prune prune = { .cache = cache };

	cache->error = 0;
	/* the links first: there is none without its image at any time */
	prune_links(&prune);
	prune_images(&prune);
	*n_imagesp = prune.n_images;
	*bytesp = prune.bytes;
	return prune.error;
}
