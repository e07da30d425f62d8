/* SPDX-License-Identifier: Apache-2.0 */
/*
 * elfoffset CLRSYM PID <ADDRESSES: names addresses (hexadecimal, one a line) as blazesym does.
 *
 * Where blazesym itself cannot be had, its way from an address to a name: the mapping, the file
 * that the callback of examples/blazesym-image.c has for it, the program header that has the file
 * offset (p_offset to p_filesz), the symbol with the highest value not above the address that this
 * gives, the larger one of two. A symbol of .symtab without a size has no end. Only files of the
 * callback are looked into. Prints "0xADDRESS NAME", or "0xADDRESS ?".
 */
#include <fcntl.h>
#include <gelf.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/util.h"
#include "examples/blazesym-image.h"

#define MAX_MAPPINGS 4096
#define MAX_FILES    256

struct mapping {
	uint64_t start, end, offset;
	char *path;
};

struct file {
	char *path;
	int fd;
	Elf *elf;
};

static struct mapping mappings[MAX_MAPPINGS];
static struct file files[MAX_FILES];
static size_t n_mappings, n_files;

static NORETURN void die(const char *what)
{
	fprintf(stderr, "elfoffset: %s\n", what);
	exit(EXIT_FAILURE);
}

/* The mappings of files that can be read or run, without the kernel's mark of a deleted file. */
static void read_mappings(const char *pid)
{
	static const char deleted[] = " (deleted)";
	char name[64], line[8192], perms[8], *path;
	FILE *f;

	snprintf(name, sizeof(name), "/proc/%s/maps", pid);
	f = fopen(name, "re");
	if (!f)
		die(name);
	while (fgets(line, sizeof(line), f) && n_mappings < MAX_MAPPINGS) {
		struct mapping *m = &mappings[n_mappings];
		size_t len;

		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %7s %" SCNx64, &m->start, &m->end, perms,
			   &m->offset) != 4)
			die(line);
		path = strchr(line, '/');
		if (!path || (perms[0] != 'r' && perms[2] != 'x'))
			continue;
		len = strcspn(path, "\n");
		if (len > strlen(deleted) &&
		    memcmp(path + len - strlen(deleted), deleted, strlen(deleted)) == 0)
			len -= strlen(deleted);
		m->path = strndup(path, len);
		n_mappings++;
	}
	fclose(f);
}

static struct file *get_file(const char *path)
{
	struct file *file;
	size_t i;

	for (i = 0; i < n_files; i++) {
		if (strcmp(files[i].path, path) == 0)
			return &files[i];
	}
	if (n_files == MAX_FILES)
		die("too many files");
	file = &files[n_files++];
	file->path = strdup(path);
	file->fd = open(path, O_RDONLY | O_CLOEXEC);
	file->elf = elf_begin(file->fd, ELF_C_READ_MMAP, NULL);
	if (!file->path || !file->elf)
		die(path);
	return file;
}

static bool virtual_address(Elf *elf, uint64_t offset, uint64_t *addrp)
{
	size_t i, n;
	GElf_Phdr p;

	if (elf_getphdrnum(elf, &n))
		die("no program headers");
	for (i = 0; i < n && gelf_getphdr(elf, (int)i, &p); i++) {
		if (p.p_type == PT_LOAD && offset >= p.p_offset &&
		    offset - p.p_offset < p.p_filesz) {
			*addrp = offset - p.p_offset + p.p_vaddr;
			return true;
		}
	}
	return false;
}

static bool is_code_or_data(const GElf_Sym *sym)
{
	unsigned int type = GELF_ST_TYPE(sym->st_info);

	return sym->st_shndx != SHN_UNDEF &&
	       (type == STT_NOTYPE || type == STT_FUNC || type == STT_OBJECT);
}

static const char *name_in(Elf *elf, Elf_Scn *section, const GElf_Shdr *shdr, uint64_t addr)
{
	Elf_Data *data = elf_getdata(section, NULL);
	GElf_Sym sym, best = { 0 };
	bool found = false;
	int i;

	for (i = 0; gelf_getsym(data, i, &sym); i++) {
		if (!is_code_or_data(&sym) || sym.st_value > addr)
			continue;
		if (found && (sym.st_value < best.st_value ||
			      (sym.st_value == best.st_value && sym.st_size <= best.st_size)))
			continue;
		best = sym;
		found = true;
	}
	if (!found)
		return NULL;
	if (best.st_size ? addr - best.st_value >= best.st_size
			 : shdr->sh_type == SHT_DYNSYM && addr != best.st_value)
		return NULL;
	return elf_strptr(elf, shdr->sh_link, best.st_name);
}

static const char *symbol_name(Elf *elf, uint64_t addr)
{
	static const uint32_t types[] = { SHT_SYMTAB, SHT_DYNSYM };
	const char *name;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(types); i++) {
		Elf_Scn *section = NULL;
		GElf_Shdr shdr;

		while ((section = elf_nextscn(elf, section))) {
			if (!gelf_getshdr(section, &shdr) || shdr.sh_type != types[i])
				continue;
			name = name_in(elf, section, &shdr, addr);
			if (name)
				return name;
		}
	}
	return NULL;
}

static const char *name_of(struct images *images, const char *pid, uint64_t addr)
{
	const struct mapping *m = NULL;
	_cleanup_free_ char *path = NULL;
	char maps_file[128];
	struct file *file;
	uint64_t place;
	size_t i;

	for (i = 0; i < n_mappings && !m; i++) {
		if (addr >= mappings[i].start && addr < mappings[i].end)
			m = &mappings[i];
	}
	if (!m)
		return NULL;
	snprintf(maps_file, sizeof(maps_file), "/proc/%s/map_files/%" PRIx64 "-%" PRIx64, pid,
		 m->start, m->end);
	path = images_dispatch(maps_file, m->path, images);
	if (!path)
		return NULL;
	file = get_file(path);
	if (!virtual_address(file->elf, addr - m->start + m->offset, &place))
		return NULL;
	return symbol_name(file->elf, place);
}

int main(int argc, char **argv)
{
	struct images *images = argc == 3 ? images_new(argv[1]) : NULL;
	char line[64];

	if (!images)
		die("usage: elfoffset CLRSYM PID <ADDRESSES");
	elf_version(EV_CURRENT);
	read_mappings(argv[2]);
	while (fgets(line, sizeof(line), stdin)) {
		uint64_t addr = strtoull(line, NULL, 16);
		const char *name = name_of(images, argv[2], addr);

		printf("0x%" PRIx64 " %s\n", addr, name ? name : "?");
	}
	while (n_files--) {
		elf_end(files[n_files].elf);
		close(files[n_files].fd);
		free(files[n_files].path);
	}
	while (n_mappings--)
		free(mappings[n_mappings].path);
	images_free(images);
	return 0;
}
