/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/* Files that the user named: they appear whole, by rename, mode 0600, or not at all. */

/*
 * write fills the fd of a new file beside path and returns 0 or -errno, or a positive code that is
 * handed on. Refuses (-EEXIST) to replace what is no regular file.
 */
int publish_file(const char *path, int (*write)(int fd, void *data), void *data);
