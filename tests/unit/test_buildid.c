/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every test has a directory of its own below /tmp: `base`, with the cache in base/cache, a home in
 * base/home, and base/outside, which nothing may ever touch. What needs root (other owners,
 * mounts) says so when it cannot be tried.
 */
#include "perfdata/buildid.h"

#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "perfdata/perfconfig.h"

#define _cleanup_cache_ _cleanup_(buildid_cache_freep)

#define STRANGER        54321u

static char base[64];
static const uint8_t id[BUILDID_SIZE] = { 0xab, 0xcd, 0xef, 1,  2,  3,  4,  5,  6,  7,
					  8,    9,    10,   11, 12, 13, 14, 15, 16, 17 };
#define XX   "ab"
#define REST "cdef0102030405060708090a0b0c0d0e0f1011"
#define HEX  XX REST

/* -- The stage --------------------------------------------------------------------------- */

/* base/NAME; one of eight rotating texts. */
static const char *at(const char *name)
{
	static char paths[8][PATH_MAX];
	static unsigned int next;
	char *path = paths[next++ % 8];

	snprintf(path, PATH_MAX, "%s/%s", base, name);
	return path;
}

static void put_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");

	ck_assert_msg(f && fputs(text, f) >= 0 && fclose(f) == 0, "%s", path);
}

static void put_dir(const char *path)
{
	ck_assert_msg(mkdir(path, 0700) == 0 || errno == EEXIST, "%s: %s", path, strerror(errno));
}

/* All directories of a path below base. */
static void put_dirs(const char *name)
{
	char rel[256];
	char *p;

	snprintf(rel, sizeof(rel), "%s", name);
	for (p = rel; (p = strchr(p, '/')); p++) {
		*p = '\0';
		put_dir(at(rel));
		*p = '/';
	}
	put_dir(at(rel));
}

static void set_up(void)
{
	umask(022);
	snprintf(base, sizeof(base), "/tmp/test-buildid-XXXXXX");
	ck_assert_ptr_nonnull(mkdtemp(base));
	put_dir(at("home"));
	put_dir(at("outside"));
	put_file(at("outside/victim"), "untouched");
	put_file(at("outside/elf"), "untouched");
	setenv("HOME", at("home"), 1);
	unsetenv("PERF_CONFIG");
	setenv("PERF_CONFIG_NOSYSTEM", "1", 1);
	unsetenv("PERF_CONFIG_NOGLOBAL");
}

static int remove_one(const char *path, const struct stat *st UNUSED, int type UNUSED,
		      struct FTW *ftw UNUSED)
{
	return remove(path);
}

static bool same_text(const char *path, const char *text)
{
	_cleanup_fclose_ FILE *f = fopen(path, "r");
	char got[256] = "";

	return f && fread(got, 1, sizeof(got) - 1, f) == strlen(text) && !strcmp(got, text);
}

static size_t count_entries(const char *path)
{
	DIR *dir = opendir(path);
	size_t n = 0;

	ck_assert_msg(dir != NULL, "%s: %s", path, strerror(errno));
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2;
}

static void tear_down(void)
{
	struct stat st;

	ck_assert(same_text(at("outside/victim"), "untouched"));
	ck_assert(same_text(at("outside/elf"), "untouched"));
	ck_assert_uint_eq(count_entries(at("outside")), 2);
	ck_assert(stat(at("outside"), &st) == 0 && (st.st_mode & 07777) == 0700);
	nftw(base, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static bool is_root(void)
{
	if (geteuid() == 0)
		return true;
	printf("skipped: not root\n");
	return false;
}

/* A mount namespace of this test's own. */
static bool own_mounts(void)
{
	if (!is_root())
		return false;
	if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
		return true;
	printf("skipped: no mount namespaces here\n");
	return false;
}

/* -- Calls ------------------------------------------------------------------------------- */

static unsigned int n_writes;

static int write_text(int fd, void *data)
{
	const char *text = data;
	size_t n = strlen(text);

	n_writes++;
	return write(fd, text, n) == (ssize_t)n ? 0 : -errno;
}

/* A megabyte, more than there is room for where this is used. */
static int write_much(int fd, void *data UNUSED)
{
	static const char zeros[4096];
	unsigned int i;

	for (i = 0; i < 256; i++) {
		if (write(fd, zeros, sizeof(zeros)) < 0)
			return -errno;
	}
	return 0;
}

static int write_fails(int fd UNUSED, void *data)
{
	return *(const int *)data;
}

static char image[] = "an image";

static struct buildid_cache *open_cache(void)
{
	struct buildid_cache *cache;

	ck_assert_int_eq(buildid_cache_open(&cache, at("cache")), 0);
	ck_assert_str_eq(buildid_cache_path(cache), at("cache"));
	return cache;
}

static int add(struct buildid_cache *cache)
{
	return buildid_cache_add(cache, "app", id, write_text, image);
}

/* One line that tells cause and remedy. */
static void check_text(const struct buildid_cache *cache, int code)
{
	const char *text = buildid_cache_error_text(cache, code);

	ck_assert_msg(strstr(text, "--buildid-dir") != NULL, "%s", text);
	ck_assert_msg(strchr(text, '\n') == NULL, "%s", text);
	ck_assert_msg(!*buildid_cache_path(cache) || strstr(text, buildid_cache_path(cache)), "%s",
		      text);
}

static void check_mode(const char *path, mode_t mode)
{
	struct stat st;

	ck_assert_msg(lstat(path, &st) == 0, "%s: %s", path, strerror(errno));
	ck_assert_msg((st.st_mode & (S_IFMT | 07777)) == mode, "%s: %o", path, st.st_mode);
}

static void check_link(const char *path, const char *want)
{
	char target[PATH_MAX] = "";

	ck_assert_msg(readlink(path, target, sizeof(target) - 1) > 0, "%s", path);
	ck_assert_str_eq(target, want);
}

/* What a good add leaves, and nothing else. */
static void check_added(void)
{
	ck_assert(same_text(at("cache/.build-id/" XX "/" REST "/elf"), image));
	check_mode(at("cache/clrsym/app/" HEX "/elf"), S_IFREG | 0600);
	check_link(at("cache/.build-id/" XX "/" REST), "../../clrsym/app/" HEX);
	ck_assert_uint_eq(count_entries(at("cache/clrsym")), 1);
	ck_assert_uint_eq(count_entries(at("cache/clrsym/app")), 1);
	ck_assert_uint_eq(count_entries(at("cache/clrsym/app/" HEX)), 1);
	ck_assert_uint_eq(count_entries(at("cache/.build-id/" XX)), 1);
}

/* -- Adding ------------------------------------------------------------------------------ */

static const mode_t umasks[] = { 022, 0, 0777, 0277 };

START_TEST(test_add)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;

	umask(umasks[_i]);
	cache = open_cache();
	n_writes = 0;
	ck_assert_int_eq(add(cache), 0);
	ck_assert_int_eq(add(cache), 0);
	umask(022);
	ck_assert_uint_eq(n_writes, 1);
	check_added();
	check_mode(at("cache"), S_IFDIR | 0700);
	check_mode(at("cache/clrsym"), S_IFDIR | 0700);
	check_mode(at("cache/clrsym/app"), S_IFDIR | 0700);
	check_mode(at("cache/clrsym/app/" HEX), S_IFDIR | 0700);
	check_mode(at("cache/.build-id"), S_IFDIR | 0700);
	check_mode(at("cache/.build-id/" XX), S_IFDIR | 0700);
}
END_TEST

/* An image is there under another label: it serves. */
START_TEST(test_add_again_by_another_name)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	n_writes = 0;
	ck_assert_int_eq(add(cache), 0);
	ck_assert_int_eq(buildid_cache_add(cache, "other", id, write_text, image), 0);
	ck_assert_uint_eq(n_writes, 1);
	check_added();
}
END_TEST

static const struct {
	const char *name, *label;
} labels[] = {
	{ "System.Private.CoreLib.dll", "System.Private.CoreLib.dll" },
	{ "a+b_c-D.9", "a+b_c-D.9" },
	{ "", "_" },
	{ ".", "_" },
	{ "..", "_." },
	{ ".hidden", "_hidden" },
	{ "../../../etc/passwd", "_._.._.._etc_passwd" },
	{ "/memfd:doublemapper (deleted)", "_memfd_doublemapper__deleted_" },
	{ "a\nb\033[2J\xff\xc3\xa9", "a_b__2J___" },
	{ "-rf", "-rf" },
	{ "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
	  "89012345678901234567890",
	  "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567"
	  "890123456789" },
};

START_TEST(test_label)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();
	char want[256];

	ck_assert_int_eq(buildid_cache_add(cache, labels[_i].name, id, write_text, image), 0);
	snprintf(want, sizeof(want), "../../clrsym/%s/" HEX, labels[_i].label);
	check_link(at("cache/.build-id/" XX "/" REST), want);
	ck_assert(same_text(at("cache/.build-id/" XX "/" REST "/elf"), image));
}
END_TEST

/* A failure of the writer leaves nothing, and no word of it is lost. */
static const struct {
	int error, want;
} write_errors[] = {
	{ -ENOMEM, -ENOMEM },
	{ -ENOSPC, BUILDID_E_NO_SPACE },
	{ -EDQUOT, BUILDID_E_NO_SPACE },
	{ -EFBIG, BUILDID_E_NO_SPACE },
	{ -EIO, BUILDID_E_DENIED },
	{ -EROFS, BUILDID_E_DENIED },
};

START_TEST(test_write_error)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();
	int error = write_errors[_i].error;

	ck_assert_int_eq(buildid_cache_add(cache, "app", id, write_fails, &error),
			 write_errors[_i].want);
	if (write_errors[_i].want > 0)
		check_text(cache, write_errors[_i].want);
	ck_assert_uint_eq(count_entries(at("cache")), 0);
	ck_assert_int_eq(add(cache), 0);
	check_added();
}
END_TEST

START_TEST(test_file_size_limit)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();
	struct rlimit limit = { 65536, RLIM_INFINITY };

	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	ck_assert_int_eq(buildid_cache_add(cache, "app", id, write_much, NULL), BUILDID_E_NO_SPACE);
	check_text(cache, BUILDID_E_NO_SPACE);
	ck_assert_uint_eq(count_entries(at("cache")), 0);
}
END_TEST

START_TEST(test_no_space)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;
	char options[64];
	int n_inodes, n_failed = 0, r;

	if (!own_mounts())
		return;
	put_dir(at("cache"));
	ck_assert_int_eq(mount("none", at("cache"), "tmpfs", 0, "size=64k,mode=0700"), 0);
	cache = open_cache();
	ck_assert_int_eq(buildid_cache_add(cache, "app", id, write_much, NULL), BUILDID_E_NO_SPACE);
	check_text(cache, BUILDID_E_NO_SPACE);
	ck_assert_uint_eq(count_entries(at("cache")), 0);
	/* full at each of the steps that need an inode */
	for (n_inodes = 1;; n_inodes++) {
		snprintf(options, sizeof(options), "nr_inodes=%d", n_inodes);
		if (mount("none", at("cache"), "tmpfs", MS_REMOUNT, options) < 0)
			continue;
		r = add(cache);
		if (!r)
			break;
		n_failed++;
		ck_assert_int_eq(r, BUILDID_E_NO_SPACE);
		check_text(cache, r);
	}
	/* .build-id, xx, the link, clrsym, NAME, ID, elf */
	ck_assert_int_ge(n_failed, 7);
	check_added();
	buildid_cache_free(TAKE_PTR(cache));
	umount(at("cache"));
}
END_TEST

START_TEST(test_read_only)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;
	uint64_t bytes;
	size_t n;

	if (!own_mounts())
		return;
	put_dir(at("cache"));
	ck_assert_int_eq(mount("none", at("cache"), "tmpfs", 0, "mode=0700"), 0);
	cache = open_cache();
	ck_assert_int_eq(add(cache), 0);
	ck_assert_int_eq(mount("none", at("cache"), "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
	/* what is there need not be written */
	ck_assert_int_eq(add(cache), 0);
	ck_assert_int_eq(buildid_cache_prune(cache, &n, &bytes), BUILDID_E_DENIED);
	check_text(cache, BUILDID_E_DENIED);
	ck_assert_uint_eq(n, 0);
	check_added();
	ck_assert_int_eq(mount("none", at("cache"), "tmpfs", MS_REMOUNT, NULL), 0);
	ck_assert_int_eq(buildid_cache_prune(cache, &n, &bytes), 0);
	ck_assert_int_eq(mount("none", at("cache"), "tmpfs", MS_REMOUNT | MS_RDONLY, NULL), 0);
	ck_assert_int_eq(add(cache), BUILDID_E_DENIED);
	check_text(cache, BUILDID_E_DENIED);
	buildid_cache_free(TAKE_PTR(cache));
	umount(at("cache"));
}
END_TEST

/* As a user without rights: runs fn in a child, whose exit status is the answer. */
static void as_stranger(void (*fn)(void))
{
	int status;
	pid_t pid = fork();

	ck_assert_int_ge(pid, 0);
	if (pid == 0) {
		if (setgid(STRANGER) < 0 || setuid(STRANGER) < 0)
			_exit(99);
		fn();
		_exit(0);
	}
	ck_assert_int_eq(waitpid(pid, &status, 0), pid);
	ck_assert_int_eq(status, 0);
}

static void try_denied(void)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;

	/* a directory of the stranger's that he may not write */
	if (buildid_cache_open(&cache, at("cache")) != 0)
		_exit(1);
	if (add(cache) != BUILDID_E_DENIED)
		_exit(2);
	check_text(cache, BUILDID_E_DENIED);
	buildid_cache_free(TAKE_PTR(cache));
	/* one that he may not make, one that he may not reach, one of root's */
	if (buildid_cache_open(&cache, at("new")) != BUILDID_E_DENIED)
		_exit(3);
	check_text(cache, BUILDID_E_DENIED);
	buildid_cache_free(TAKE_PTR(cache));
	if (buildid_cache_open(&cache, at("outside/x")) != BUILDID_E_DENIED)
		_exit(4);
	buildid_cache_free(TAKE_PTR(cache));
	if (buildid_cache_open(&cache, at("home")) != BUILDID_E_FOREIGN)
		_exit(5);
	check_text(cache, BUILDID_E_FOREIGN);
}

START_TEST(test_denied)
{
	if (!is_root())
		return;
	ck_assert_int_eq(chmod(base, 0755), 0);
	put_dir(at("cache"));
	ck_assert_int_eq(chmod(at("cache"), 0500), 0);
	ck_assert_int_eq(chown(at("cache"), STRANGER, STRANGER), 0);
	as_stranger(try_denied);
}
END_TEST

static void try_strange_masks(void)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;

	/* directories that their maker could not even look into */
	umask(0777);
	if (buildid_cache_open(&cache, at("his/cache")) != 0)
		_exit(1);
	if (add(cache) != 0)
		_exit(2);
}

START_TEST(test_strange_mask)
{
	if (!is_root())
		return;
	ck_assert_int_eq(chmod(base, 0755), 0);
	put_dir(at("his"));
	ck_assert_int_eq(chown(at("his"), STRANGER, STRANGER), 0);
	as_stranger(try_strange_masks);
	check_mode(at("his/cache/clrsym/app/" HEX), S_IFDIR | 0700);
	check_mode(at("his/cache/clrsym/app/" HEX "/elf"), S_IFREG | 0600);
}
END_TEST

/* -- What is in the way ------------------------------------------------------------------ */

enum obstacle {
	LINK, /* to base/outside */
	DANGLING,
	REGULAR_FILE,
	FIFO,
	STRANGERS_DIR,
	OPEN_DIR, /* writable by others */
	N_OBSTACLES,
};

static void put_obstacle(const char *path, enum obstacle obstacle)
{
	int r = 0;

	switch (obstacle) {
	case LINK: r = symlink(at("outside"), path); break;
	case DANGLING: r = symlink(at("nowhere"), path); break;
	case REGULAR_FILE: put_file(path, "a file"); break;
	case FIFO: r = mkfifo(path, 0600); break;
	case STRANGERS_DIR:
		put_dir(path);
		r = chown(path, STRANGER, STRANGER);
		break;
	case OPEN_DIR:
		put_dir(path);
		r = chmod(path, 0770);
		break;
	case N_OBSTACLES: break;
	}
	ck_assert_int_eq(r, 0);
}

static int obstacle_code(enum obstacle obstacle)
{
	return obstacle >= STRANGERS_DIR ? BUILDID_E_FOREIGN : BUILDID_E_BLOCKED;
}

static const char *const steps[] = {
	"cache",        "cache/.build-id",  "cache/.build-id/" XX,
	"cache/clrsym", "cache/clrsym/app", "cache/clrsym/app/" HEX,
};

START_TEST(test_obstacle)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;
	enum obstacle obstacle = (enum obstacle)(_i % N_OBSTACLES);
	const char *step = steps[_i / N_OBSTACLES];
	char above[256];
	struct stat before, after;
	int r;

	if (obstacle == STRANGERS_DIR && !is_root())
		return;
	snprintf(above, sizeof(above), "%s", step);
	if (strchr(above, '/')) {
		*strrchr(above, '/') = '\0';
		put_dirs(above);
	}
	put_obstacle(at(step), obstacle);
	ck_assert_int_eq(lstat(at(step), &before), 0);
	r = buildid_cache_open(&cache, at("cache"));
	if (!r)
		r = add(cache);
	ck_assert_int_eq(r, obstacle_code(obstacle));
	check_text(cache, r);
	/* the obstacle is named, and as it was */
	ck_assert_ptr_nonnull(strstr(buildid_cache_error_text(cache, r), at(step)));
	ck_assert_int_eq(lstat(at(step), &after), 0);
	ck_assert(before.st_ino == after.st_ino && before.st_mode == after.st_mode &&
		  before.st_uid == after.st_uid);
}
END_TEST

/* A link stays one with a slash behind it. */
START_TEST(test_slash)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;
	char path[PATH_MAX];

	ck_assert_int_eq(symlink(at("outside"), at("cache")), 0);
	snprintf(path, sizeof(path), "%s///", at("cache"));
	ck_assert_int_eq(buildid_cache_open(&cache, path), BUILDID_E_BLOCKED);
	buildid_cache_free(TAKE_PTR(cache));
	unlink(at("cache"));
	ck_assert_int_eq(buildid_cache_open(&cache, path), 0);
	ck_assert_str_eq(buildid_cache_path(cache), at("cache"));
}
END_TEST

/* The caller's own words may lead over links, and may be relative. */
START_TEST(test_ways)
{
	static const char *const ways[] = { "cache", "./cache", "../home/cache", ".",
					    "over/cache" };
	size_t i;

	ck_assert_int_eq(chdir(at("home")), 0);
	ck_assert_int_eq(symlink(".", "over"), 0);
	for (i = 0; i < ARRAY_SIZE(ways); i++) {
		_cleanup_cache_ struct buildid_cache *cache = NULL;

		ck_assert_int_eq(buildid_cache_open(&cache, ways[i]), 0);
		ck_assert_int_eq(add(cache), 0);
		check_mode("cache/clrsym", S_IFDIR | 0700);
	}
}
END_TEST

START_TEST(test_parent)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;

	ck_assert_int_eq(buildid_cache_open(&cache, at("no/cache")), BUILDID_E_DENIED);
	check_text(cache, BUILDID_E_DENIED);
	buildid_cache_free(TAKE_PTR(cache));
	ck_assert_int_eq(buildid_cache_open(&cache, at("outside/victim/cache")), BUILDID_E_BLOCKED);
	buildid_cache_free(TAKE_PTR(cache));
	if (!is_root())
		return;
	/* root with a user's $HOME: a .debug of root's there would lock perf out */
	ck_assert_int_eq(chown(at("home"), STRANGER, STRANGER), 0);
	ck_assert_int_eq(buildid_cache_open(&cache, NULL), BUILDID_E_FOREIGN);
	check_text(cache, BUILDID_E_FOREIGN);
	ck_assert_uint_eq(count_entries(at("home")), 0);
}
END_TEST

/* perf's way to have no cache. Nobody shall be told to remove that. */
START_TEST(test_dev_null)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;

	ck_assert_int_eq(buildid_cache_open(&cache, "/dev/null"), BUILDID_E_BLOCKED);
	check_text(cache, BUILDID_E_BLOCKED);
	ck_assert_ptr_null(strstr(buildid_cache_error_text(cache, BUILDID_E_BLOCKED), "remove"));
}
END_TEST

START_TEST(test_other_file_system)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;
	uint64_t bytes;
	size_t n;

	if (!own_mounts())
		return;
	put_dirs("cache/clrsym");
	ck_assert_int_eq(mount("none", at("cache/clrsym"), "tmpfs", 0, "mode=0700"), 0);
	put_file(at("cache/clrsym/kept"), "x");
	cache = open_cache();
	ck_assert_int_eq(add(cache), BUILDID_E_BLOCKED);
	check_text(cache, BUILDID_E_BLOCKED);
	ck_assert_int_eq(buildid_cache_prune(cache, &n, &bytes), BUILDID_E_BLOCKED);
	ck_assert_int_eq(access(at("cache/clrsym/kept"), F_OK), 0);
	umount(at("cache/clrsym"));
}
END_TEST

/* -- What stands under the names ---------------------------------------------------------- */

/* Instead of the image: replaced where nothing is lost. */
static const struct {
	enum obstacle obstacle;
	int want;
} images[] = {
	{ LINK, 0 },
	{ DANGLING, 0 },
	{ FIFO, 0 },
	{ OPEN_DIR, BUILDID_E_BLOCKED },
};

START_TEST(test_image_name_taken)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	put_dirs("cache/clrsym/app/" HEX);
	put_obstacle(at("cache/clrsym/app/" HEX "/elf"), images[_i].obstacle);
	ck_assert_int_eq(add(cache), images[_i].want);
	if (images[_i].want)
		check_text(cache, images[_i].want);
	else
		check_added();
}
END_TEST

/* What a power cut may leave. */
START_TEST(test_empty_image)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	ck_assert_int_eq(add(cache), 0);
	ck_assert_int_eq(truncate(at("cache/clrsym/app/" HEX "/elf"), 0), 0);
	ck_assert_int_eq(add(cache), 0);
	check_added();
}
END_TEST

START_TEST(test_entry_of_perf)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();
	const char *target = "../../home/user/[app] x/" HEX;

	put_dirs("cache/.build-id/" XX);
	put_dirs("cache/home/user/[app] x/" HEX);
	put_file(at("cache/home/user/[app] x/" HEX "/elf"), image);
	ck_assert_int_eq(symlink(target, at("cache/.build-id/" XX "/" REST)), 0);
	n_writes = 0;
	ck_assert_int_eq(add(cache), 0);
	ck_assert_uint_eq(n_writes, 0);
	check_link(at("cache/.build-id/" XX "/" REST), target);
	ck_assert_int_lt(access(at("cache/clrsym"), F_OK), 0);
}
END_TEST

/* Links that lead to no image in the cache: nobody is served by them. */
static const char *const stale[] = {
	"../../gone/" HEX,
	"../../clrsym/app/" HEX,
	"../../../outside",
	"../../over",
	"../../inside/../inside",
	"../../inside/",
	"../../empty",
	"../inside",
	"/",
	"x",
};

START_TEST(test_stale_entry)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	put_dirs("cache/.build-id/" XX);
	put_dirs("cache/inside");
	put_dirs("cache/empty");
	put_file(at("cache/inside/elf"), "x");
	put_file(at("cache/empty/elf"), "");
	ck_assert_int_eq(symlink(at("outside"), at("cache/over")), 0);
	ck_assert_int_eq(symlink(stale[_i], at("cache/.build-id/" XX "/" REST)), 0);
	ck_assert_int_eq(add(cache), 0);
	check_added();
}
END_TEST

static const enum obstacle no_links[] = { REGULAR_FILE, FIFO, OPEN_DIR };

START_TEST(test_entry_is_no_link)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	put_dirs("cache/.build-id/" XX);
	put_obstacle(at("cache/.build-id/" XX "/" REST), no_links[_i]);
	ck_assert_int_eq(add(cache), BUILDID_E_BLOCKED);
	check_text(cache, BUILDID_E_BLOCKED);
	ck_assert_ptr_nonnull(
		strstr(buildid_cache_error_text(cache, BUILDID_E_BLOCKED), XX "/" REST));
	ck_assert_int_lt(access(at("cache/clrsym"), F_OK), 0);
}
END_TEST

/* -- Pruning ----------------------------------------------------------------------------- */

static int prune(struct buildid_cache *cache, size_t n_want, uint64_t bytes_want)
{
	uint64_t bytes = 12345;
	size_t n = 12345;
	int r = buildid_cache_prune(cache, &n, &bytes);

	ck_assert_uint_eq(n, n_want);
	ck_assert_uint_eq(bytes, bytes_want);
	return r;
}

START_TEST(test_prune)
{
	static const struct timespec old[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
	_cleanup_cache_ struct buildid_cache *cache = open_cache();
	uint8_t other[BUILDID_SIZE] = { 0xab, 0xff };

	ck_assert_int_eq(prune(cache, 0, 0), 0);
	/* of perf's, in a directory of links with one of ours, and in one of its own */
	put_dirs("cache/.build-id/" XX);
	put_dirs("cache/.build-id/77");
	put_dirs("cache/.build-id/78");
	put_dirs("cache/bin/x/" HEX);
	put_file(at("cache/bin/x/" HEX "/elf"), "perf's");
	ck_assert_int_eq(symlink("../../bin/x/" HEX, at("cache/.build-id/" XX "/perf")), 0);
	ck_assert_int_eq(symlink("../../clrsymbols/x", at("cache/.build-id/77/perf")), 0);
	ck_assert_int_eq(symlink("../../clrsym", at("cache/.build-id/77/short")), 0);
	put_file(at("cache/.build-id/77/file"), "../../clrsym/");
	ck_assert_int_eq(add(cache), 0);
	ck_assert_int_eq(buildid_cache_add(cache, "b", other, write_text, image), 0);
	other[0] = 1;
	ck_assert_int_eq(buildid_cache_add(cache, "b", other, write_text, image), 0);
	/* what a crash leaves */
	put_file(at("cache/clrsym/.tmp-0123"), "half");
	/* as old as what a crash has left */
	ck_assert_int_eq(utimensat(AT_FDCWD, at("cache/clrsym/.tmp-0123"), old, 0), 0);
	ck_assert_int_eq(symlink("../../clrsym/a/b", at("cache/.build-id/01/.tmp-0123")), 0);

	ck_assert_int_eq(prune(cache, 3, 3 * strlen(image) + 4), 0);
	ck_assert_uint_eq(count_entries(at("cache")), 2);
	ck_assert_uint_eq(count_entries(at("cache/.build-id")), 3);
	ck_assert_uint_eq(count_entries(at("cache/.build-id/" XX)), 1);
	ck_assert_uint_eq(count_entries(at("cache/.build-id/77")), 3);
	ck_assert(same_text(at("cache/bin/x/" HEX "/elf"), "perf's"));
	ck_assert_int_eq(prune(cache, 0, 0), 0);
	ck_assert_int_eq(add(cache), 0);
}
END_TEST

/* One that is being written stays, and so does what it is in. */
START_TEST(test_prune_unfinished)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	put_dirs("cache/clrsym");
	put_file(at("cache/clrsym/.tmp-0123"), "half");
	ck_assert_int_eq(prune(cache, 0, 0), 0);
	ck_assert_int_eq(access(at("cache/clrsym/.tmp-0123"), F_OK), 0);
}
END_TEST

/* Planted links, FIFOs and the like go, what they lead to stays. */
START_TEST(test_prune_planted)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	ck_assert_int_eq(add(cache), 0);
	ck_assert_int_eq(symlink(at("outside"), at("cache/clrsym/link")), 0);
	ck_assert_int_eq(symlink(at("outside"), at("cache/clrsym/app/" HEX "/link")), 0);
	ck_assert_int_eq(symlink(at("outside/elf"), at("cache/clrsym/app/elf")), 0);
	ck_assert_int_eq(link(at("outside/victim"), at("cache/clrsym/hard")), 0);
	ck_assert_int_eq(mkfifo(at("cache/clrsym/app/fifo"), 0600), 0);
	put_dirs("cache/clrsym/a/b/c/d/e");
	ck_assert_int_eq(symlink("../../clrsym/../../outside", at("cache/.build-id/" XX "/y")), 0);
	ck_assert_int_eq(symlink(at("outside"), at("cache/.build-id/cd")), 0);
	ck_assert_int_eq(prune(cache, 1, strlen(image) + strlen("untouched")), BUILDID_E_BLOCKED);
	ck_assert_int_eq(unlink(at("cache/.build-id/cd")), 0);
	ck_assert_int_eq(prune(cache, 0, 0), 0);
	ck_assert_uint_eq(count_entries(at("cache")), 1);
	ck_assert_uint_eq(count_entries(at("cache/.build-id")), 0);
}
END_TEST

static const char *const prune_steps[] = { "cache/.build-id", "cache/clrsym" };

START_TEST(test_prune_obstacle)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();
	enum obstacle obstacle = (enum obstacle)(_i % N_OBSTACLES);
	const char *step = prune_steps[_i / N_OBSTACLES];
	int r = obstacle_code(obstacle);

	if (obstacle == STRANGERS_DIR && !is_root())
		return;
	put_obstacle(at(step), obstacle);
	ck_assert_int_eq(prune(cache, 0, 0), r);
	check_text(cache, r);
}
END_TEST

/* What cannot be removed keeps nothing else from being removed. */
START_TEST(test_prune_goes_on)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	if (!is_root())
		return;
	ck_assert_int_eq(add(cache), 0);
	put_dir(at("cache/clrsym/aaa"));
	put_dir(at("cache/clrsym/zzz"));
	put_obstacle(at("cache/clrsym/aaa/his"), STRANGERS_DIR);
	put_obstacle(at("cache/clrsym/zzz/his"), STRANGERS_DIR);
	ck_assert_int_eq(prune(cache, 1, strlen(image)), BUILDID_E_FOREIGN);
	check_text(cache, BUILDID_E_FOREIGN);
	ck_assert_uint_eq(count_entries(at("cache/clrsym")), 2);
}
END_TEST

START_TEST(test_prune_depth)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();

	put_dirs("cache/clrsym/1/2/3/4/5/6/7/8/9/10");
	ck_assert_int_eq(prune(cache, 0, 0), BUILDID_E_BLOCKED);
	check_text(cache, BUILDID_E_BLOCKED);
}
END_TEST

/* -- Many at once ------------------------------------------------------------------------ */

#define N_RUNS   300u
#define N_ADDERS 4u
/* With more than one, a directory can be removed under a pruner, too. */
static const unsigned int n_pruners[] = { 0, 1, 3 };

static void run_adder(uint8_t number)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();
	unsigned int i;

	for (i = 0; i < N_RUNS; i++) {
		uint8_t some[BUILDID_SIZE] = { (uint8_t)(i % 3), (uint8_t)(i % 5) };
		int r = buildid_cache_add(cache, i % 2 ? "even" : "odd", some, write_text, image);

		if (r) {
			fprintf(stderr, "adder %u: %s\n", number,
				buildid_cache_error_text(cache, r));
			_exit(1);
		}
	}
	_exit(0);
}

static void run_pruner(void)
{
	_cleanup_cache_ struct buildid_cache *cache = open_cache();
	uint64_t bytes;
	size_t n;

	for (;;) {
		int r = buildid_cache_prune(cache, &n, &bytes);

		if (r) {
			fprintf(stderr, "pruner: %s\n", buildid_cache_error_text(cache, r));
			_exit(1);
		}
	}
}

START_TEST(test_at_once)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;
	pid_t adders[N_ADDERS], pruners[3];
	int status;
	uint8_t i;

	for (i = 0; i < N_ADDERS; i++) {
		adders[i] = fork();
		if (adders[i] == 0)
			run_adder(i);
	}
	for (i = 0; i < n_pruners[_i]; i++) {
		pruners[i] = fork();
		if (pruners[i] == 0)
			run_pruner();
	}
	for (i = 0; i < N_ADDERS; i++) {
		ck_assert_int_eq(waitpid(adders[i], &status, 0), adders[i]);
		ck_assert_int_eq(status, 0);
	}
	cache = open_cache();
	for (i = 0; i < n_pruners[_i]; i++) {
		ck_assert_int_eq(waitpid(pruners[i], &status, WNOHANG), 0);
		kill(pruners[i], SIGKILL);
		waitpid(pruners[i], &status, 0);
	}
	if (!n_pruners[_i]) {
		ck_assert_uint_eq(count_entries(at("cache/clrsym")), 2);
		ck_assert_uint_eq(count_entries(at("cache/.build-id")), 3);
		ck_assert_int_eq(prune(cache, 15, 15 * strlen(image)), 0);
		ck_assert_uint_eq(count_entries(at("cache")), 1);
	}
	ck_assert_int_eq(add(cache), 0);
	ck_assert(same_text(at("cache/.build-id/" XX "/" REST "/elf"), image));
}
END_TEST

/* -- perf's configuration ---------------------------------------------------------------- */

/* What perf 6.1 was seen to make of $HOME/.perfconfig. */
static const struct {
	const char *text, *dir;
} configs[] = {
	{ "", NULL },
	{ "[buildid]\n\tdir = /a\n", "/a" },
	{ "[buildid]\ndir=/a", "/a" },
	{ "[BuildId] Dir=/a;x\n", "/a" },
	{ "[buildid]\r\n dir = /a\r\n", "/a" },
	{ "\xef\xbb\xbf[buildid]\ndir = /a\n", "/a" },
	{ "[buildid]\n\tdir = \"/a  b\"  c  \td # comment\n", "/a  b c d" },
	{ "[buildid]\n\tdir = /a#b\n", "/a" },
	{ "[buildid]\n\tdir = \"/a#b\"\n", "/a#b" },
	{ "[buildid]\n\tdir = /a\\\n/b\n", "/a/b" },
	{ "[buildid]\n\tdir = /a\\t\\\\\\\"\n", "/a\t\\\"" },
	{ "[buildid]\n\tdir = /a\\b\n", "/a\b" },
	{ "[buildid]\n\tdir = ~/x\n", "~/x" },
	{ "[buildid]\n\tdir = rel\n", "rel" },
	{ "[buildid]\n\tdir =\n", NULL },
	{ "[buildid]\ndir = /a\ndir = /b\n", "/b" },
	{ "[buildid]\ndir = /a\n[x\ndir = /b\n", "/a" },
	{ "[buildid]\ndir\n", NULL },
	{ "[buildid]\ndir = \"/a\n", NULL },
	{ "[buildid]\ndir = /a\\q\n", NULL },
	{ "[buildid \"x\"]\ndir = /a\n", NULL },
	{ "[buildid-cache]\ndir = /a\n", NULL },
	{ "[report]\nx = 1\n# [buildid]\n;dir = /z\n[buildid]\nother = 2\ndir = /a\n[top]\ndir = "
	  "/b\n",
	  "/a" },
	{ "dir = /a\n", NULL },
	{ "]\n[buildid]\ndir = /a\n", NULL },
	{ "[]\n", NULL },
	{ "[\n", NULL },
	{ "[buildid", NULL },
	{ "[buildid \"x", NULL },
};

static void check_config(const char *want)
{
	_cleanup_free_ char *dir = NULL;

	ck_assert_int_eq(perfconfig_buildid_dir(&dir), 0);
	if (want)
		ck_assert_pstr_eq(dir, want);
	else
		ck_assert_ptr_null(dir);
}

START_TEST(test_config)
{
	put_file(at("home/.perfconfig"), configs[_i].text);
	check_config(configs[_i].dir);
}
END_TEST

START_TEST(test_config_too_long)
{
	_cleanup_fclose_ FILE *f = fopen(at("home/.perfconfig"), "w");
	unsigned int i;

	fputs("[buildid]\ndir = /a\ndir = ", f);
	for (i = 0; i < 1024; i++)
		fputc('x', f);
	fflush(f);
	check_config("/a");
}
END_TEST

START_TEST(test_config_files)
{
	put_file(at("home/.perfconfig"), "[buildid]\ndir = /home\n");
	put_file(at("home/other"), "[buildid]\ndir = /other\n");
	check_config("/home");
	setenv("PERF_CONFIG_NOGLOBAL", "yes", 1);
	check_config(NULL);
	setenv("PERF_CONFIG_NOGLOBAL", "no", 1);
	check_config("/home");
	setenv("PERF_CONFIG", at("home/other"), 1);
	check_config("/other");
	setenv("PERF_CONFIG", at("home/nothing"), 1);
	check_config(NULL);
	unsetenv("PERF_CONFIG");
	unlink(at("home/.perfconfig"));
	ck_assert_int_eq(mkfifo(at("home/.perfconfig"), 0600), 0);
	check_config(NULL);
	unlink(at("home/.perfconfig"));
	put_dir(at("home/.perfconfig"));
	check_config(NULL);
	unsetenv("HOME");
	check_config(NULL);
}
END_TEST

START_TEST(test_config_of_others)
{
	if (!is_root())
		return;
	put_file(at("home/.perfconfig"), "[buildid]\ndir = /home\n");
	ck_assert_int_eq(chown(at("home/.perfconfig"), STRANGER, STRANGER), 0);
	check_config(NULL);
}
END_TEST

START_TEST(test_config_of_the_system)
{
	if (!own_mounts())
		return;
	ck_assert_int_eq(mount("none", "/etc", "tmpfs", 0, NULL), 0);
	put_file("/etc/perfconfig", "[buildid]\ndir = /etc\n");
	setenv("PERF_CONFIG_NOSYSTEM", "0", 1);
	check_config("/etc");
	put_file(at("home/.perfconfig"), "[buildid]\ndir = /home\n");
	check_config("/home");
	put_file("/etc/perfconfig", "[buildid]\ndir = /etc\nnonsense");
	check_config("/etc");
	setenv("PERF_CONFIG_NOSYSTEM", "1", 1);
	check_config("/home");
}
END_TEST

START_TEST(test_default_place)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;
	char text[PATH_MAX];

	ck_assert_int_eq(buildid_cache_open(&cache, NULL), 0);
	ck_assert_str_eq(buildid_cache_path(cache), at("home/.debug"));
	check_mode(at("home/.debug"), S_IFDIR | 0700);
	buildid_cache_free(TAKE_PTR(cache));

	snprintf(text, sizeof(text), "[buildid]\ndir = %s\n", at("home/elsewhere"));
	put_file(at("home/.perfconfig"), text);
	ck_assert_int_eq(buildid_cache_open(&cache, NULL), 0);
	ck_assert_str_eq(buildid_cache_path(cache), at("home/elsewhere"));
	buildid_cache_free(TAKE_PTR(cache));

	/* the option has the last word */
	ck_assert_int_eq(buildid_cache_open(&cache, at("home/here")), 0);
	ck_assert_str_eq(buildid_cache_path(cache), at("home/here"));
}
END_TEST

START_TEST(test_no_home)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;

	if (_i)
		setenv("HOME", "", 1);
	else
		unsetenv("HOME");
	ck_assert_int_eq(buildid_cache_open(&cache, NULL), BUILDID_E_NO_HOME);
	ck_assert_str_eq(buildid_cache_path(cache), "");
	check_text(cache, BUILDID_E_NO_HOME);
}
END_TEST

static TCase *new_tcase(Suite *s, const char *name)
{
	TCase *tc = tcase_create(name);

	tcase_add_checked_fixture(tc, set_up, tear_down);
	suite_add_tcase(s, tc);
	return tc;
}

int main(void)
{
	Suite *s = suite_create("buildid");
	SRunner *sr;
	TCase *tc;
	int failed;

	tc = new_tcase(s, "add");
	tcase_add_loop_test(tc, test_add, 0, ARRAY_SIZE(umasks));
	tcase_add_test(tc, test_add_again_by_another_name);
	tcase_add_loop_test(tc, test_label, 0, ARRAY_SIZE(labels));
	tcase_add_loop_test(tc, test_write_error, 0, ARRAY_SIZE(write_errors));
	tcase_add_test(tc, test_file_size_limit);
	tcase_add_test(tc, test_no_space);
	tcase_add_test(tc, test_read_only);
	tcase_add_test(tc, test_denied);
	tcase_add_test(tc, test_strange_mask);
	tc = new_tcase(s, "obstacles");
	tcase_add_loop_test(tc, test_obstacle, 0, ARRAY_SIZE(steps) * N_OBSTACLES);
	tcase_add_test(tc, test_slash);
	tcase_add_test(tc, test_ways);
	tcase_add_test(tc, test_parent);
	tcase_add_test(tc, test_dev_null);
	tcase_add_test(tc, test_other_file_system);
	tc = new_tcase(s, "names taken");
	tcase_add_loop_test(tc, test_image_name_taken, 0, ARRAY_SIZE(images));
	tcase_add_test(tc, test_empty_image);
	tcase_add_test(tc, test_entry_of_perf);
	tcase_add_loop_test(tc, test_stale_entry, 0, ARRAY_SIZE(stale));
	tcase_add_loop_test(tc, test_entry_is_no_link, 0, ARRAY_SIZE(no_links));
	tc = new_tcase(s, "prune");
	tcase_add_test(tc, test_prune);
	tcase_add_test(tc, test_prune_unfinished);
	tcase_add_test(tc, test_prune_planted);
	tcase_add_loop_test(tc, test_prune_obstacle, 0, ARRAY_SIZE(prune_steps) * N_OBSTACLES);
	tcase_add_test(tc, test_prune_goes_on);
	tcase_add_test(tc, test_prune_depth);
	tc = new_tcase(s, "at once");
	tcase_add_loop_test(tc, test_at_once, 0, ARRAY_SIZE(n_pruners));
	tc = new_tcase(s, "configuration");
	tcase_add_loop_test(tc, test_config, 0, ARRAY_SIZE(configs));
	tcase_add_test(tc, test_config_too_long);
	tcase_add_test(tc, test_config_files);
	tcase_add_test(tc, test_config_of_others);
	tcase_add_test(tc, test_config_of_the_system);
	tcase_add_test(tc, test_default_place);
	tcase_add_loop_test(tc, test_no_home, 0, 2);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
