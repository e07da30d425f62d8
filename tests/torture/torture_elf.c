/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each allocation of making an image and of putting it into a build-id cache fails in turn. The
 * answer is -ENOMEM; an image goes on as if the refused call had never been, and a cache is either
 * as it was or complete.
 */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "elf/image.h"
#include "perfdata/buildid.h"

void torture_arm(unsigned long n);
unsigned long torture_count(void);

/* Tables and buffers grow several times. */
#define N_BODIES        3000u

#define _cleanup_image_ _cleanup_(elf_image_freep)
#define _cleanup_cache_ _cleanup_(buildid_cache_freep)

static char dir[] = "/tmp/torture-elf-XXXXXX";
static uint8_t want_id[ELF_BUILD_ID_SIZE];

static void check(bool good, const char *what, unsigned long n)
{
	if (good)
		return;
	fprintf(stderr, "torture_elf: allocation %lu: %s\n", n, what);
	exit(EXIT_FAILURE);
}

static int add_body(struct elf_image *image, unsigned int i)
{
	static const uint8_t code[64] = { 0xc3 };
	char name[64];
	int n = snprintf(name, sizeof(name), "Ns.Type::Method%u", i);

	/* not in order, so that finishing sorts */
	return elf_image_add(image, ELF_IMAGE_BASE + (uint64_t)(N_BODIES - i) * 64, 64, name,
			     (size_t)n, i % 3 ? code : NULL);
}

/* A call that fails is made again: only one allocation fails. */
static int make_image(unsigned long n)
{
	_cleanup_image_ struct elf_image *image = NULL;
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_close_ int fd = -1;
	int r, failed = 0;
	unsigned int i;

	r = elf_image_new(&image, EM_X86_64, 1 << 20);
	if (r)
		return r;
	for (i = 0; i < N_BODIES; i++) {
		r = add_body(image, i);
		if (r) {
			failed = r;
			check(elf_image_count(image) == i, "part of a body", n);
			r = add_body(image, i);
		}
		check(!r, "a body is refused twice", n);
	}
	r = elf_image_finish(image, id);
	if (r) {
		failed = r;
		r = elf_image_finish(image, id);
	}
	check(!r, "does not finish at the second try", n);
	fd = memfd_create("image", MFD_CLOEXEC);
	check(elf_image_write(image, fd) == 0, "cannot be written", n);
	if (!n)
		memcpy(want_id, id, sizeof(id));
	check(!memcmp(id, want_id, sizeof(id)), "another image", n);
	return failed;
}

static int write_image(int fd, void *data UNUSED)
{
	return write(fd, "image", 5) == 5 ? 0 : -errno;
}

static int use_cache(unsigned long n)
{
	_cleanup_cache_ struct buildid_cache *cache = NULL;
	uint64_t bytes;
	size_t n_images;
	int r;

	r = buildid_cache_open(&cache, NULL);
	if (r)
		return r;
	r = buildid_cache_add(cache, "name", want_id, write_image, NULL);
	if (r)
		return r;
	r = buildid_cache_prune(cache, &n_images, &bytes);
	check(r || n_images == 1, "one image", n);
	return r;
}

static void torture(int (*scenario)(unsigned long n), unsigned long at_least)
{
	unsigned long n;
	int r;

	torture_arm(0);
	check(!scenario(0), "fails unarmed", 0);
	for (n = 1;; n++) {
		torture_arm(n);
		r = scenario(n);
		if (torture_count() < n)
			break;
		check(r == -ENOMEM, "not -ENOMEM", n);
	}
	torture_arm(0);
	check(!r, "fails without a reason", n);
	check(n - 1 >= at_least, "fewer allocations than expected", n);
	printf("torture_elf: %lu allocations failed in turn\n", n - 1);
}

int main(void)
{
	char home[64], path[96];
	FILE *config;

	if (!mkdtemp(dir))
		return EXIT_FAILURE;
	snprintf(home, sizeof(home), "%s/home", dir);
	snprintf(path, sizeof(path), "%s/home/.perfconfig", dir);
	mkdir(home, 0700);
	config = fopen(path, "w");
	if (!config)
		return EXIT_FAILURE;
	fprintf(config, "[buildid]\ndir = %s/other\ndir = %s/cache\n", dir, dir);
	fclose(config);
	setenv("HOME", home, 1);
	unsetenv("PERF_CONFIG");
	unsetenv("PERF_CONFIG_NOGLOBAL");
	setenv("PERF_CONFIG_NOSYSTEM", "1", 1);

	torture(make_image, 12);
	torture(use_cache, 3);

	unlink(path);
	rmdir(home);
	snprintf(path, sizeof(path), "%s/cache/.build-id", dir);
	rmdir(path);
	snprintf(path, sizeof(path), "%s/cache", dir);
	rmdir(path);
	check(rmdir(dir) == 0, "something is left behind", 0);
	return EXIT_SUCCESS;
}
