/* SPDX-License-Identifier: Apache-2.0 */
/* See publish.h. */
#include "cli/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/util.h"

int publish_file(const char *path, int (*write)(int fd, void *data), void *data)
{
	_cleanup_free_ char *temp = NULL;
	_cleanup_close_ int fd = -1;
	struct stat st;
	int r;

	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return -EEXIST; /* a device, a link, a folder */
	if (asprintf(&temp, "%s.XXXXXX", path) < 0) {
		temp = NULL;
		return -ENOMEM;
	}
	fd = mkostemp(temp, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	r = write(fd, data);
	if (r == 0 && rename(temp, path) < 0)
		r = -errno;
	if (r)
		unlink(temp);
	return r;
}
