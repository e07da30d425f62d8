/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * The files in which blazesym finds the names of managed code: `clrsym image --mapping` makes one
 * of what the process has at the first question about a mapping, and it is not made again. For code
 * that came later there has to be a new set (and a new symbolizer, which keeps its files open).
 */

struct images;

/* clrsym: the program, looked up in PATH if without a slash. NULL: errno says why. */
struct images *images_new(const char *clrsym);
/* Removes the files, too. */
void images_free(struct images *images);

/*
 * blazesym's dispatch_cb, with a struct images as ctx: the path of such a file, for blazesym to
 * free(), or NULL, when it is to look at the mapped file as it always does.
 */
char *images_dispatch(const char *maps_file, const char *symbolic_path, void *ctx);
