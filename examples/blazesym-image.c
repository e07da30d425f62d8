/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Managed code is in two kinds of mappings that have a file: JIT-compiled code in those of a memfd,
 * precompiled code in those of assemblies. Neither file has symbols, and a memfd has no path
 * either. clrsym writes an ELF file in which the symbols are at the file offsets of the mapping,
 * which is the address that blazesym goes by; the rest of this file is to run it only once.
 *
 * What clrsym says when it fails goes to stderr; that mapping is left to blazesym then.
 */
#include "blazesym-image.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

struct image {
	struct image *next;
	int pid;
	char *name; /* of the mapped file, with its path: others have the same last component */
	char *path; /* NULL: there is none */
};

struct images {
	char *clrsym;
	char *dir;
	unsigned int n_files;
	struct image *first;
};

struct images *images_new(const char *clrsym)
{
	const char *tmp = getenv("TMPDIR");
	struct images *images = calloc(1, sizeof(*images));

	if (!images)
		return NULL;
	images->clrsym = strdup(clrsym);
	if (asprintf(&images->dir, "%s/clrsym-images-XXXXXX", tmp && *tmp ? tmp : "/tmp") < 0)
		images->dir = NULL;
	if (images->clrsym && images->dir && mkdtemp(images->dir))
		return images;
	free(images->clrsym);
	free(images->dir);
	free(images);
	return NULL;
}

static void image_free(struct image *image)
{
	if (image->path)
		unlink(image->path);
	free(image->path);
	free(image->name);
	free(image);
}

void images_free(struct images *images)
{
	struct image *image;

	if (!images)
		return;
	while ((image = images->first)) {
		images->first = image->next;
		image_free(image);
	}
	rmdir(images->dir);
	free(images->dir);
	free(images->clrsym);
	free(images);
}

static bool is_managed(const char *name)
{
	size_t len = strlen(name);

	return strcmp(name, "memfd:doublemapper") == 0 ||
	       (len > 4 &&
		(!strcasecmp(name + len - 4, ".dll") || !strcasecmp(name + len - 4, ".exe")));
}

static bool run(const char *const *argv)
{
	posix_spawn_file_actions_t actions;
	int status, r;
	pid_t child;

	if (posix_spawn_file_actions_init(&actions))
		return false;
	/* what it prints is for people who run it */
	r = posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	if (r == 0)
		r = posix_spawnp(&child, argv[0], &actions, NULL, (char **)(uintptr_t)argv,
				 environ);
	posix_spawn_file_actions_destroy(&actions);
	if (r) {
		fprintf(stderr, "%s: %s\n", argv[0], strerror(r));
		return false;
	}
	while (waitpid(child, &status, 0) < 0) {
		if (errno != EINTR)
			return false;
	}
	return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* The file's path, or NULL. */
static char *make_file(struct images *images, int pid, const char *name)
{
	char number[16];
	const char *argv[] = {
		images->clrsym, "image", number, "--mapping", name, "-o", NULL, NULL
	};
	char *path;

	if (asprintf(&path, "%s/%u.elf", images->dir, images->n_files++) < 0)
		return NULL;
	snprintf(number, sizeof(number), "%d", pid);
	argv[6] = path;
	if (run(argv))
		return path;
	free(path);
	return NULL;
}

static struct image *get_image(struct images *images, int pid, const char *name)
{
	struct image *image;

	for (image = images->first; image; image = image->next) {
		if (image->pid == pid && strcmp(image->name, name) == 0)
			return image;
	}
	image = calloc(1, sizeof(*image));
	if (!image)
		return NULL;
	image->pid = pid;
	image->name = strdup(name);
	if (!image->name) {
		free(image);
		return NULL;
	}
	image->path = make_file(images, pid, name);
	image->next = images->first;
	images->first = image;
	return image;
}

char *images_dispatch(const char *maps_file, const char *symbolic_path, void *ctx)
{
	const char *slash = strrchr(symbolic_path, '/');
	const char *name = slash ? slash + 1 : symbolic_path;
	struct image *image;
	int pid;

	/* /proc/PID/map_files/START-END is all that says which process it is */
	if (!is_managed(name) || sscanf(maps_file, "/proc/%d/", &pid) != 1)
		return NULL;
	image = get_image(ctx, pid, symbolic_path);
	return image && image->path ? strdup(image->path) : NULL;
}
