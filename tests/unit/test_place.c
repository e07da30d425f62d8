/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Places of our own process: whatever can be mapped is mapped, and asked for. Code bodies are put
 * into the map as the runtime would announce them.
 */
#include "target/place.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "base/caps.h"
#include "base/clock.h"

#define PAGE 4096u

static struct proc *self;
static struct codemap *map;
static struct places *places;

static void set_up(void)
{
	ck_assert_int_eq(proc_open(getpid(), &self), 0);
	ck_assert_int_eq(codemap_new(&map, NULL), 0);
	ck_assert_int_eq(places_new(&places), 0);
}

static void tear_down(void)
{
	places_free(places);
	codemap_free(map);
	proc_close(self);
}

static enum place_kind find_at(const void *addr, uint64_t now_ns)
{
	enum place_kind kind;

	ck_assert_int_eq(places_find(places, self, map, (uintptr_t)addr, now_ns, &kind), 0);
	return kind;
}

/* Read anew. */
static enum place_kind find_now(const void *addr)
{
	ck_assert_int_eq(places_refresh(places, self, clock_now_ns()), 0);
	return find_at(addr, clock_now_ns());
}

static uint8_t *map_pages(size_t n, int prot, int fd)
{
	void *p = mmap(NULL, n * PAGE, prot, MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);

	ck_assert_ptr_ne(p, MAP_FAILED);
	return p;
}

static void announce(const void *addr)
{
	const struct codemap_load load = {
		.method_id = 1,
		.module_id = 2,
		.start = (uintptr_t)addr,
		.time = 1,
		.size = 16,
		.ns = "N",
		.name = "M",
		.sig = "S",
		.ns_len = 1,
		.name_len = 1,
		.sig_len = 1,
	};

	ck_assert_int_eq(codemap_load(map, &load, NULL), 0);
}

/* A file below /tmp with that ending, mapped executable (or not). */
static uint8_t *map_file(const char *ending, int prot, bool deleted)
{
	_cleanup_free_ char *path = NULL;
	_cleanup_close_ int fd = -1;
	uint8_t *p;

	ck_assert_int_gt(asprintf(&path, "/tmp/test-place-XXXXXX%s", ending), 0);
	fd = mkostemps(path, (int)strlen(ending), O_CLOEXEC);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(ftruncate(fd, PAGE), 0);
	if (deleted)
		unlink(path);
	p = map_pages(1, prot, fd);
	ck_assert_int_eq(places_refresh(places, self, clock_now_ns()), 0);
	unlink(path);
	return p;
}

START_TEST(test_files)
{
	static const struct {
		const char *ending;
		int prot;
		bool deleted;
		enum place_kind kind;
	} files[] = {
		{ ".dll", PROT_READ | PROT_EXEC, false, PLACE_PRECOMPILED },
		{ ".dll", PROT_READ | PROT_EXEC, true, PLACE_PRECOMPILED },
		{ ".exe", PROT_READ | PROT_EXEC, false, PLACE_PRECOMPILED },
		{ ".dll", PROT_READ, false, PLACE_DATA },
		{ ".so", PROT_READ | PROT_EXEC, false, PLACE_NATIVE },
		{ "", PROT_READ | PROT_EXEC, true, PLACE_NATIVE },
		{ "(deleted)", PROT_READ | PROT_EXEC, true, PLACE_NATIVE },
		{ ".dllx", PROT_READ | PROT_EXEC, false, PLACE_NATIVE },
	};
	const uint8_t *p = map_file(files[_i].ending, files[_i].prot, files[_i].deleted);
	bool listed = false;
	const char *path;
	uint64_t addr;
	size_t i;

	ck_assert_int_eq(find_at(p, clock_now_ns()), files[_i].kind);
	for (i = 0; places_file(places, i, &addr, &path); i++) {
		if (addr != (uintptr_t)p)
			continue;
		listed = true;
		ck_assert_int_eq(strncmp(path, "/tmp/test-place-", 16), 0);
		ck_assert_int_eq(!!strstr(path, " (deleted)"), files[_i].deleted);
	}
	ck_assert_int_eq(listed, files[_i].kind != PLACE_DATA);
}
END_TEST

START_TEST(test_native)
{
	const void *vdso = (const void *)getauxval(AT_SYSINFO_EHDR);
	const char *path;
	uint64_t addr, last = 0;
	bool libc = false;
	size_t i;

	ck_assert_int_eq(find_now((const void *)(uintptr_t)&getpid), PLACE_NATIVE);
	ck_assert_int_eq(find_now((const void *)(uintptr_t)&tear_down), PLACE_NATIVE);
	if (vdso)
		ck_assert_int_eq(find_now(vdso), PLACE_NATIVE);
	ck_assert_int_eq(find_now(&libc), PLACE_DATA);
	ck_assert_int_eq(find_now(&self), PLACE_DATA);
	ck_assert_int_eq(find_now(NULL), PLACE_UNMAPPED);
	ck_assert_int_eq(find_now((const void *)UINTPTR_MAX), PLACE_UNMAPPED);
	for (i = 0; places_file(places, i, &addr, &path); i++) {
		ck_assert_uint_gt(addr, last);
		last = addr;
		libc |= !!strstr(path, "/libc");
		ck_assert_int_eq(*path, '/');
	}
	ck_assert(libc);
}
END_TEST

/* Anonymous memory, as the runtime has it without W^X; and its memory file. */
START_TEST(test_runtime_memory)
{
	_cleanup_close_ int fd = memfd_create(_i ? "doublemapper" : "other", MFD_CLOEXEC);
	int prot = PROT_READ | PROT_EXEC;
	uint8_t *stubs, *heap;

	ck_assert_int_eq(ftruncate(fd, 8 * PAGE), 0);
	/* with a hole between them: two mappings */
	stubs = map_pages(8, prot, _i == 2 ? -1 : fd);
	heap = stubs + 4 * PAGE;
	ck_assert_int_eq(munmap(stubs + 3 * PAGE, PAGE), 0);
	announce(heap + 100);
	if (_i == 0) {
		ck_assert_int_eq(find_now(stubs), PLACE_NATIVE);
		return;
	}
	ck_assert_int_eq(find_now(stubs), PLACE_STUB);
	ck_assert_int_eq(find_now(stubs + 3 * PAGE), PLACE_UNMAPPED);
	ck_assert_int_eq(find_now(heap), PLACE_CODE_HEAP);
	ck_assert_int_eq(find_now(heap + 4 * PAGE - 1), PLACE_CODE_HEAP);
	ck_assert_int_eq(codemap_unload(map, 1, (uintptr_t)heap + 100, 2), 0);
	ck_assert_int_eq(find_now(heap), PLACE_STUB);
}
END_TEST

/* The file of a single-file program. */
START_TEST(test_image_in_another_file)
{
	uint8_t *p = map_file("", PROT_READ | PROT_EXEC, false);

	ck_assert_int_eq(find_now(p), PLACE_NATIVE);
	announce(p + 16);
	ck_assert_int_eq(find_now(p), PLACE_PRECOMPILED);
}
END_TEST

/* The clock is told, so what is read when is known. */
START_TEST(test_refresh)
{
	uint64_t now = SEC_NS(1000), late;
	uint8_t *p = map_pages(2, PROT_NONE, -1);
	uint8_t *code = map_pages(1, PROT_READ | PROT_EXEC, -1);

	ck_assert_int_eq(find_at(p, now), PLACE_DATA); /* the first question reads */
	ck_assert_int_eq(mprotect(p, PAGE, PROT_READ | PROT_EXEC), 0);
	ck_assert_int_eq(find_at(p, now), PLACE_DATA);
	ck_assert_int_eq(find_at(p, now + PLACE_REFRESH_NS - 1), PLACE_DATA);
	/* a reading that took long makes the pause longer */
	late = now + PLACE_REFRESH_NS + SEC_NS(4);
	ck_assert_int_eq(find_at(p, late), PLACE_STUB);
	/* code is not looked at again so soon */
	ck_assert_int_eq(munmap(code, PAGE), 0);
	ck_assert_int_eq(find_at(code, late + PLACE_REFRESH_NS + SEC_NS(4)), PLACE_STUB);
	ck_assert_int_eq(find_at(code, late + SEC_NS(60)), PLACE_UNMAPPED);
	/* a clock that stands still or runs backwards refreshes nothing */
	ck_assert_int_eq(munmap(p, 2 * PAGE), 0);
	ck_assert_int_eq(find_at(p, now), PLACE_STUB);
}
END_TEST

/* What was there stays known when the process has gone. */
START_TEST(test_process_gone)
{
	struct proc *child;
	enum place_kind kind;
	struct places *late;
	pid_t pid = fork();

	if (pid == 0) {
		pause();
		_exit(0);
	}
	ck_assert_int_eq(proc_open(pid, &child), 0);
	ck_assert_int_eq(places_refresh(places, child, SEC_NS(1)), 0);
	kill(pid, SIGKILL);
	/* a zombie first: its mappings can be read, and are none */
	waitid(P_PID, (id_t)pid, NULL, WEXITED | WNOWAIT);
	ck_assert_int_gt(places_refresh(places, child, SEC_NS(2)), 0);
	waitpid(pid, NULL, 0);
	ck_assert_int_eq(places_find(places, child, map, (uintptr_t)&getpid, SEC_NS(1000), &kind),
			 0);
	ck_assert_int_eq(kind, PLACE_NATIVE);
	ck_assert_int_eq(places_find(places, child, map, 0, SEC_NS(2000), &kind), 0);
	ck_assert_int_eq(kind, PLACE_UNMAPPED);
	ck_assert_int_eq(places_new(&late), 0);
	ck_assert_int_eq(places_find(late, child, map, 0, SEC_NS(2000), &kind), 0);
	ck_assert_int_eq(kind, PLACE_UNKNOWN);
	places_free(late);
	proc_close(child);
}
END_TEST

/* Neighbours of no interest take one entry, and a path is kept once. */
START_TEST(test_memory)
{
	enum { N = 20000 };
	_cleanup_close_ int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	size_t before, i;
	uint8_t *p;

	ck_assert_int_eq(places_refresh(places, self, clock_now_ns()), 0);
	before = places_memory(places);
	p = map_pages(N, PROT_READ, -1);
	for (i = 0; i < N; i += 2)
		ck_assert_int_eq(mprotect(p + i * PAGE, PAGE, PROT_NONE), 0);
	ck_assert_int_eq(places_refresh(places, self, clock_now_ns()), 0);
	ck_assert_uint_le(places_memory(places), before + 4096);
	ck_assert_int_eq(munmap(p, (size_t)N * PAGE), 0);
	for (i = 0; i < 1000; i++)
		map_pages(1, PROT_READ | PROT_EXEC, fd);
	ck_assert_int_eq(places_refresh(places, self, clock_now_ns()), 0);
	ck_assert_uint_le(places_memory(places), before + 1000 * 64);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("place");
	TCase *tc = tcase_create("kinds");
	SRunner *sr;
	int failed;

	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_loop_test(tc, test_files, 0, 8);
	tcase_add_test(tc, test_native);
	tcase_add_loop_test(tc, test_runtime_memory, 0, 3);
	tcase_add_test(tc, test_image_in_another_file);
	suite_add_tcase(s, tc);
	tc = tcase_create("table");
	tcase_add_checked_fixture(tc, set_up, tear_down);
	tcase_add_test(tc, test_refresh);
	tcase_add_test(tc, test_process_gone);
	tcase_add_test(tc, test_memory);
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
