/* SPDX-License-Identifier: Apache-2.0 */
#pragma once

/*
 * A synthetic ELF image: symbols, and code bytes where there are any, in an address space of the
 * caller's choice. perf, objdump, gdb and blazesym read it like any other shared object.
 *
 * ELF64, little-endian, ET_DYN: .text (address = file offset, so that readers that want one or the
 * other agree, with a program header that says the same), .symtab, .strtab, .note.gnu.build-id.
 * Addresses begin at ELF_IMAGE_BASE: below it are the headers. The build-id is a hash of everything
 * in it.
 *
 * If no function has code, .text has no bytes (NOBITS) and the file is as large as its names:
 * names and sizes then serve in any address space, and disassemblers show nothing in place of
 * zeros. As soon as one has code, .text is in the file, and for a moment in memory, from the base
 * to where the last code ends: functions with code should get the lower addresses. Those without
 * may lie behind the end of .text, and cost nothing there but their names.
 */

#include <stddef.h>
#include <stdint.h>

#include "base/util.h"

#define ELF_IMAGE_BASE    0x1000u
#define ELF_BUILD_ID_SIZE 20u

struct elf_image;

enum elf_image_error {
	ELF_IMAGE_E_INVALID = 1, /* no size, no name, below the base, past the last address */
	ELF_IMAGE_E_FULL,        /* code over max_bytes, or a cap on names or their number */
};

/*
 * machine: EM_X86_64, EM_AARCH64, …; max_bytes: bound on .text as it is in the file, and on all
 * code added together. Functions without code may lie beyond. Returns 0 or -ENOMEM.
 */
int elf_image_new(struct elf_image **outp, uint16_t machine, uint64_t max_bytes);
void elf_image_free(struct elf_image *image);

/*
 * A function [addr, addr + size). The name is copied as it is, up to a NUL or CAP_SYMBOL_NAME (the
 * caller has seen to control characters); code (size bytes, copied) may be NULL, then the range
 * reads as zeros before the end of .text and is not in the file behind it. In any order; ranges
 * should not overlap (readers keep one of those that do). Returns 0, -ENOMEM or a code, and has
 * then added nothing. Not after elf_image_finish().
 */
int elf_image_add(struct elf_image *image, uint64_t addr, uint64_t size, const char *name,
		  size_t name_len, const void *code);
size_t elf_image_count(const struct elf_image *image);

/*
 * Sorts, lays out, and computes the id: equal content, equal id and equal file, whatever the order
 * of calls. Once; after -ENOMEM it may be tried again.
 */
int elf_image_finish(struct elf_image *image, uint8_t id[ELF_BUILD_ID_SIZE]);
/* Writes the finished image to an empty regular file, as often as wished. Returns 0 or -errno. */
int elf_image_write(const struct elf_image *image, int fd);

DEFINE_CLEANUP(struct elf_image *, elf_image_free)
