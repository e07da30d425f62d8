/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a fuzz target over files: replay_TARGET FILE|DIRECTORY...
 *
 * So the corpora are checked in each test run, with any compiler and without libFuzzer.
 * Directories are walked one level deep, hidden files passed over.
 */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/caps.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define CAP_INPUT MIB(64)

static int replay_file(const char *path)
{
	_cleanup_fclose_ FILE *f = fopen(path, "rb");
	_cleanup_free_ uint8_t *exact = NULL;
	_cleanup_buf_ struct buf input;
	size_t n;

	buf_init(&input, CAP_INPUT);
	if (!f)
		return -errno;
	do {
		if (buf_reserve(&input, 65536) < 0)
			return input.error;
		n = fread(input.data + input.len, 1, 65536, f);
		input.len += n;
	} while (n);
	if (ferror(f))
		return -EIO;
	/* nothing behind the last byte: the sanitizers see a read past it */
	exact = malloc(MAX(input.len, (size_t)1));
	if (!exact)
		return -ENOMEM;
	memcpy(exact, input.data, input.len);
	LLVMFuzzerTestOneInput(exact, input.len);
	return 0;
}

static int replay_directory(const char *path, unsigned long *n_inputsp)
{
	DIR *dir = opendir(path);
	const struct dirent *entry;
	int r = 0;

	if (!dir)
		return -errno;
	while (!r && (entry = readdir(dir))) {
		_cleanup_free_ char *file = NULL;

		if (entry->d_name[0] == '.')
			continue;
		if (asprintf(&file, "%s/%s", path, entry->d_name) < 0) {
			file = NULL;
			r = -ENOMEM;
			break;
		}
		r = replay_file(file);
		if (r)
			fprintf(stderr, "%s: %s\n", file, strerror(-r));
		else
			(*n_inputsp)++;
	}
	closedir(dir);
	return r;
}

int main(int argc, char **argv)
{
	unsigned long n_inputs = 0;
	int i;

	for (i = 1; i < argc; i++) {
		struct stat st;
		int r;

		if (stat(argv[i], &st) < 0) {
			r = -errno;
		} else if (S_ISDIR(st.st_mode)) {
			r = replay_directory(argv[i], &n_inputs);
		} else {
			r = replay_file(argv[i]);
			n_inputs += !r;
		}
		if (r) {
			fprintf(stderr, "%s: %s\n", argv[i], strerror(-r));
			return EXIT_FAILURE;
		}
	}
	printf("%lu inputs replayed\n", n_inputs);
	return EXIT_SUCCESS;
}
