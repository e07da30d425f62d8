/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* For programs that damage recorded files: the files, and where to hit them (always the same). */

#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"

static uint64_t state = 0x2545f4914f6cdd1du;

static uint64_t draw(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static uint8_t *read_all(const char *path, size_t *sizep)
{
	_cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	uint8_t *bytes;

	if (fd < 0 || fstat(fd, &st) < 0)
		return NULL;
	bytes = malloc((size_t)st.st_size);
	if (bytes && read(fd, bytes, (size_t)st.st_size) != st.st_size)
		bytes = (free(bytes), NULL);
	*sizep = (size_t)st.st_size;
	return bytes;
}
