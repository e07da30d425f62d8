/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * perf's build-id cache: where perf looks first for the file behind a mapping with a build-id.
 *
 *   DIR/clrsym/NAME/HEX-ID/elf          the image
 *   DIR/.build-id/xx/yyyy…              a link to ../../clrsym/NAME/HEX-ID
 *
 * annotate wants exactly that: a link to a directory that holds `elf`. Everything of ours is
 * below DIR/clrsym, so that it can be removed again.
 *
 * DIR belongs to the user who runs perf. One that belongs to somebody else, or that others may
 * write to, is refused, and so is every directory in it; none of them may be a link (the
 * directories above DIR may). Several programs may add and prune at the same time.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

#define BUILDID_SIZE 20u

struct buildid_cache;

enum buildid_error {
	BUILDID_E_FOREIGN = 1, /* the directory is somebody else's, or others may write to it */
	BUILDID_E_NO_HOME,     /* no --buildid-dir, no perf configuration and no $HOME */
	BUILDID_E_BLOCKED,  /* a link or a file of another kind stands where a directory should */
	BUILDID_E_DENIED,   /* not writable: rights, read-only, no directory to make it in */
	BUILDID_E_NO_SPACE, /* also a quota or a limit on file sizes */
};

/*
 * Opens (makes, mode 0700, but not what it is in) the cache: dir, or what perf itself would use:
 * buildid.dir of perf's configuration, else $HOME/.debug. Returns 0, -errno or a code; on a code
 * *outp is set, too, for buildid_cache_path(), buildid_cache_error_text() and _free() only.
 */
int buildid_cache_open(struct buildid_cache **outp, const char *dir);
void buildid_cache_free(struct buildid_cache *cache);
/* The directory's path, for messages and for perf --buildid-dir. */
const char *buildid_cache_path(const struct buildid_cache *cache);
/* One line, cause and remedy, about what the last call on this cache has returned. */
const char *buildid_cache_error_text(const struct buildid_cache *cache, int error);

/*
 * Puts an image in under its id, unless one with that id is there, of ours or of perf's. name is a
 * label (what is no plain file name in it becomes '_'). write fills the fd of a new file (0600) and
 * returns 0 or -errno; it may be called again with another one. The image appears whole, by rename,
 * and the link after it. Returns 0, -errno or a code. A failure leaves nothing behind, but for
 * an image whose link cannot be made: the next call uses it, and a prune removes it.
 */
int buildid_cache_add(struct buildid_cache *cache, const char *name, const uint8_t id[BUILDID_SIZE],
		      int (*write)(int fd, void *data), void *data);

/*
 * Removes everything that buildid_cache_add() ever put in, and counts the images and the bytes of
 * all files. Goes on after a failure. Returns 0, or the first -errno or code.
 */
int buildid_cache_prune(struct buildid_cache *cache, size_t *n_imagesp, uint64_t *bytesp);

DEFINE_CLEANUP(struct buildid_cache *, buildid_cache_free)
