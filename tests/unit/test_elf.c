/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images are written to memory files and read again with the kernel's structures, not with the
 * library that wrote them; then the programs they are made for are asked.
 */
#include "elf/image.h"

#include <check.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/caps.h"

#define BASE            ELF_IMAGE_BASE
#define SPACE           (1u << 20)

#define _cleanup_image_ _cleanup_(elf_image_freep)

struct body {
	uint64_t addr, size;
	const char *name, *code;
};

#define HOT_CODE   "\x55\x48\x89\xe5\x48\xff\xcf\x90\x75\xfa\x5d\xc3"
#define HOT_NAME   "My.Ns.Type::Hot(int32) [OptimizedTier1]"
#define OTHER_NAME "<Main>$::List`1[System.Int32]::Other"

static const struct body bodies[] = {
	{ BASE + 0x10, 12, HOT_NAME, HOT_CODE },
	{ BASE + 0x40, 3, OTHER_NAME, NULL },
	{ BASE + 0x43, 1, "r\xc3\xa9sum\xc3\xa9", "\xc3" },
	{ BASE + 0x2000, 0x100, "x", NULL }, /* behind the end of .text */
};

#define TEXT_SIZE 0x44u

static void add(struct elf_image *image, const struct body *b)
{
	ck_assert_int_eq(elf_image_add(image, b->addr, b->size, b->name, strlen(b->name), b->code),
			 0);
}

static struct elf_image *new_image(uint16_t machine)
{
	struct elf_image *image;

	ck_assert_int_eq(elf_image_new(&image, machine, SPACE), 0);
	return image;
}

/* -- A file, read again ------------------------------------------------------------------ */

struct file {
	const uint8_t *bytes;
	size_t size;
	const Elf64_Ehdr *ehdr;
	const Elf64_Shdr *shdrs;
	const Elf64_Shdr *text, *symtab, *strtab, *note;
};

static const Elf64_Shdr *find_section(const struct file *f, const char *name)
{
	const char *names = (const char *)f->bytes + f->shdrs[f->ehdr->e_shstrndx].sh_offset;
	size_t i;

	for (i = 1; i < f->ehdr->e_shnum; i++) {
		if (!strcmp(names + f->shdrs[i].sh_name, name))
			return &f->shdrs[i];
	}
	ck_abort_msg("no section %s", name);
}

static void read_back(int fd, struct file *f)
{
	struct stat st;

	ck_assert_int_eq(fstat(fd, &st), 0);
	f->size = (size_t)st.st_size;
	f->bytes = mmap(NULL, f->size, PROT_READ, MAP_SHARED, fd, 0);
	ck_assert_ptr_ne(f->bytes, MAP_FAILED);
	f->ehdr = (const Elf64_Ehdr *)(const void *)f->bytes;
	f->shdrs = (const Elf64_Shdr *)(const void *)(f->bytes + f->ehdr->e_shoff);
	f->text = find_section(f, ".text");
	f->symtab = find_section(f, ".symtab");
	f->strtab = find_section(f, ".strtab");
	f->note = find_section(f, ".note.gnu.build-id");
}

static int finish(struct elf_image *image, uint8_t id[ELF_BUILD_ID_SIZE])
{
	int fd = memfd_create("image", MFD_CLOEXEC);

	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(elf_image_finish(image, id), 0);
	ck_assert_int_eq(elf_image_write(image, fd), 0);
	return fd;
}

/* Before them are the null one and the comma. */
#define FIRST_BODY 2

static const Elf64_Sym *symbol(const struct file *f, size_t i)
{
	ck_assert_uint_lt(i, f->symtab->sh_size / sizeof(Elf64_Sym));
	return (const Elf64_Sym *)(const void *)(f->bytes + f->symtab->sh_offset) + i;
}

static const char *symbol_name(const struct file *f, size_t i)
{
	ck_assert_uint_lt(symbol(f, i)->st_name, f->strtab->sh_size);
	return (const char *)f->bytes + f->strtab->sh_offset + symbol(f, i)->st_name;
}

static int write_bodies(uint16_t machine, uint8_t id[ELF_BUILD_ID_SIZE], struct file *f)
{
	_cleanup_image_ struct elf_image *image = new_image(machine);
	size_t i;
	int fd;

	for (i = 0; i < ARRAY_SIZE(bodies); i++)
		add(image, &bodies[i]);
	ck_assert_uint_eq(elf_image_count(image), ARRAY_SIZE(bodies));
	fd = finish(image, id);
	ck_assert_uint_eq(elf_image_count(image), ARRAY_SIZE(bodies));
	read_back(fd, f);
	return fd;
}

/* -- Layout ------------------------------------------------------------------------------ */

START_TEST(test_headers)
{
	uint8_t id[ELF_BUILD_ID_SIZE];
	const Elf64_Phdr *phdr;
	_cleanup_close_ int fd = -1;
	struct file f;

	fd = write_bodies(EM_X86_64, id, &f);
	ck_assert_mem_eq(f.ehdr->e_ident, "\177ELF\2\1\1", 7);
	ck_assert_uint_eq(f.ehdr->e_type, ET_DYN);
	ck_assert_uint_eq(f.ehdr->e_machine, EM_X86_64);
	ck_assert_uint_eq(f.ehdr->e_phnum, 1);
	phdr = (const Elf64_Phdr *)(const void *)(f.bytes + f.ehdr->e_phoff);
	ck_assert_uint_eq(phdr->p_type, PT_LOAD);
	ck_assert_uint_eq(phdr->p_vaddr - phdr->p_offset, 0);
	/* of all addresses, in the file or not */
	ck_assert_uint_eq(phdr->p_vaddr + phdr->p_memsz, BASE + 0x2100);
	ck_assert_uint_eq(phdr->p_offset + phdr->p_filesz, BASE + 0x2100);

	ck_assert_uint_eq(f.note->sh_type, SHT_NOTE);
	ck_assert_uint_eq(f.note->sh_size, 36);
	ck_assert_mem_eq(f.bytes + f.note->sh_offset, "\4\0\0\0\24\0\0\0\3\0\0\0GNU", 16);
	ck_assert_mem_eq(f.bytes + f.note->sh_offset + 16, id, ELF_BUILD_ID_SIZE);
}
END_TEST

START_TEST(test_symbols)
{
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_close_ int fd = -1;
	struct file f;
	size_t i;

	fd = write_bodies(EM_X86_64, id, &f);
	ck_assert_uint_eq(f.symtab->sh_type, SHT_SYMTAB);
	ck_assert_uint_eq(f.symtab->sh_info, FIRST_BODY);
	ck_assert_ptr_eq(&f.shdrs[f.symtab->sh_link], f.strtab);
	ck_assert_uint_eq(f.symtab->sh_size, (ARRAY_SIZE(bodies) + FIRST_BODY) * sizeof(Elf64_Sym));
	ck_assert_str_eq(symbol_name(&f, 1), ",");
	ck_assert_uint_eq(symbol(&f, 1)->st_info, ELF64_ST_INFO(STB_LOCAL, STT_NOTYPE));
	ck_assert_uint_eq(symbol(&f, 1)->st_shndx, SHN_UNDEF);
	for (i = 0; i < ARRAY_SIZE(bodies); i++) {
		const Elf64_Sym *sym = symbol(&f, FIRST_BODY + i);

		ck_assert_str_eq(symbol_name(&f, FIRST_BODY + i), bodies[i].name);
		ck_assert_uint_eq(sym->st_value, bodies[i].addr);
		ck_assert_uint_eq(sym->st_size, bodies[i].size);
		ck_assert_uint_eq(sym->st_info, ELF64_ST_INFO(STB_GLOBAL, STT_FUNC));
		ck_assert_ptr_eq(&f.shdrs[sym->st_shndx], f.text);
	}
}
END_TEST

START_TEST(test_text)
{
	uint8_t id[ELF_BUILD_ID_SIZE], want[TEXT_SIZE] = { 0 };
	_cleanup_close_ int fd = -1;
	struct file f;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(bodies); i++) {
		if (bodies[i].code)
			memcpy(want + bodies[i].addr - BASE, bodies[i].code, bodies[i].size);
	}
	fd = write_bodies(EM_X86_64, id, &f);
	ck_assert_uint_eq(f.text->sh_type, SHT_PROGBITS);
	ck_assert_uint_eq(f.text->sh_flags, SHF_ALLOC | SHF_EXECINSTR);
	ck_assert_uint_eq(f.text->sh_addr, BASE);
	ck_assert_uint_eq(f.text->sh_offset, BASE);
	ck_assert_uint_eq(f.text->sh_size, sizeof(want));
	ck_assert_mem_eq(f.bytes + BASE, want, sizeof(want));
}
END_TEST

/* A large body without code behind one with: as far as the file goes it is a name. */
START_TEST(test_text_ends_with_code)
{
	static const struct body far[] = {
		{ BASE + 0x20, MIB(64), "large", NULL },
		{ UINT64_MAX - 16, 16, "last", NULL },
	};
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);
	_cleanup_close_ int fd = -1;
	const Elf64_Phdr *phdr;
	struct file f;

	add(image, &bodies[0]);
	add(image, &far[0]);
	add(image, &far[1]);
	fd = finish(image, id);
	read_back(fd, &f);
	ck_assert_uint_lt(f.size, 2 * BASE);
	ck_assert_uint_eq(f.text->sh_type, SHT_PROGBITS);
	ck_assert_uint_eq(f.text->sh_size, bodies[0].addr + bodies[0].size - BASE);
	ck_assert_mem_eq(f.bytes + bodies[0].addr, bodies[0].code, bodies[0].size);
	ck_assert_uint_eq(symbol(&f, FIRST_BODY + 1)->st_size, MIB(64));
	ck_assert_uint_eq(symbol(&f, FIRST_BODY + 2)->st_value, far[1].addr);
	ck_assert_ptr_eq(&f.shdrs[symbol(&f, FIRST_BODY + 2)->st_shndx], f.text);
	phdr = (const Elf64_Phdr *)(const void *)(f.bytes + f.ehdr->e_phoff);
	ck_assert_uint_eq(phdr->p_filesz, UINT64_MAX);
	ck_assert_uint_eq(phdr->p_memsz, UINT64_MAX);
}
END_TEST

/* Without any code the file is small, however large the space. */
START_TEST(test_names_only)
{
	static const struct body far = { BASE + (UINT64_C(1) << 40), 4096, "far", NULL };
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_image_ struct elf_image *image = NULL;
	_cleanup_close_ int fd = -1;
	struct file f;

	ck_assert_int_eq(elf_image_new(&image, EM_X86_64, UINT64_MAX), 0);
	add(image, &bodies[1]);
	add(image, &far);
	fd = finish(image, id);
	read_back(fd, &f);
	ck_assert_uint_lt(f.size, 2 * BASE);
	ck_assert_uint_eq(f.text->sh_type, SHT_NOBITS);
	ck_assert_uint_eq(f.text->sh_addr, f.text->sh_offset);
	ck_assert_uint_eq(f.text->sh_size, far.addr + far.size - BASE);
	ck_assert_uint_eq(symbol(&f, FIRST_BODY + 1)->st_value, far.addr);
	ck_assert_str_eq(symbol_name(&f, FIRST_BODY + 1), "far");
}
END_TEST

START_TEST(test_empty)
{
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);
	_cleanup_close_ int fd = finish(image, id);
	struct file f;

	read_back(fd, &f);
	ck_assert_uint_eq(f.text->sh_size, 0);
	ck_assert_uint_eq(f.symtab->sh_size, FIRST_BODY * sizeof(Elf64_Sym));
}
END_TEST

START_TEST(test_other_machine)
{
	uint8_t x86_id[ELF_BUILD_ID_SIZE], arm_id[ELF_BUILD_ID_SIZE];
	_cleanup_close_ int x86_fd = -1, arm_fd = -1;
	size_t id_offset, i, n_different = 0;
	struct file x86, arm;

	x86_fd = write_bodies(EM_X86_64, x86_id, &x86);
	arm_fd = write_bodies(EM_AARCH64, arm_id, &arm);
	ck_assert_uint_eq(arm.ehdr->e_machine, EM_AARCH64);
	ck_assert_mem_ne(x86_id, arm_id, ELF_BUILD_ID_SIZE);
	ck_assert_uint_eq(x86.size, arm.size);
	id_offset = x86.note->sh_offset + 16;
	for (i = 0; i < x86.size; i++) {
		if (i < id_offset || i >= id_offset + ELF_BUILD_ID_SIZE)
			n_different += x86.bytes[i] != arm.bytes[i];
	}
	ck_assert_uint_eq(n_different, 1);
}
END_TEST

/* -- The id ------------------------------------------------------------------------------ */

/* Same start, same size, same name: order is decided by what is left. */
static const struct body shuffled[] = {
	{ BASE + 0x10, 2, "b", "\1\2" },  { BASE + 0x10, 2, "a", NULL },
	{ BASE + 0x10, 2, "a", "\1\3" },  { BASE + 0x10, 2, "a", "\1\2" },
	{ BASE + 0x10, 1, "z", NULL },    { BASE, 1, "first", "\x90" },
	{ BASE + 0x20, 9, "last", NULL },
};

START_TEST(test_order_is_nothing)
{
	uint8_t id[ELF_BUILD_ID_SIZE], want_id[ELF_BUILD_ID_SIZE];
	struct file f, want;
	size_t step, i;

	for (step = 1; step < ARRAY_SIZE(shuffled); step++) {
		_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);
		_cleanup_close_ int fd = -1;

		/* the number of bodies is a prime: each step visits all */
		for (i = 0; i < ARRAY_SIZE(shuffled); i++)
			add(image, &shuffled[(i + 1) * step % ARRAY_SIZE(shuffled)]);
		fd = finish(image, id);
		read_back(fd, &f);
		if (step == 1) {
			want = f;
			memcpy(want_id, id, sizeof(id));
			continue;
		}
		ck_assert_mem_eq(id, want_id, ELF_BUILD_ID_SIZE);
		ck_assert_uint_eq(f.size, want.size);
		ck_assert_mem_eq(f.bytes, want.bytes, f.size);
	}
	ck_assert_str_eq(symbol_name(&want, FIRST_BODY), "first");
	ck_assert_str_eq(symbol_name(&want, FIRST_BODY + 1), "z");
	ck_assert_str_eq(symbol_name(&want, FIRST_BODY + ARRAY_SIZE(shuffled) - 1), "last");
}
END_TEST

/* In the order of addresses, with gaps that are filled and one that is not. */
static const struct body in_order[] = {
	{ BASE, 3, "a", "\1\2\3" },     { BASE + 0x10, 2, "b", "\4\5" },
	{ BASE + 0x12, 1, "c", "\6" },  { BASE + 0x20, 4, "d", "\7\10\11\12" },
	{ BASE + 0x40, 1, "e", "\13" }, { BASE + 0x41, 1, "f", NULL },
};

START_TEST(test_code_in_order)
{
	size_t n, i;

	for (n = 1; n <= ARRAY_SIZE(in_order); n++) {
		_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);
		_cleanup_image_ struct elf_image *other = new_image(EM_X86_64);
		uint8_t id[ELF_BUILD_ID_SIZE], other_id[ELF_BUILD_ID_SIZE];
		_cleanup_close_ int fd = -1, other_fd = -1;
		struct file f, want;

		for (i = 0; i < n; i++) {
			add(image, &in_order[i]);
			add(other, &in_order[n - 1 - i]);
		}
		fd = finish(image, id);
		other_fd = finish(other, other_id);
		read_back(fd, &f);
		read_back(other_fd, &want);
		ck_assert_mem_eq(id, other_id, ELF_BUILD_ID_SIZE);
		ck_assert_uint_eq(f.size, want.size);
		ck_assert_mem_eq(f.bytes, want.bytes, f.size);
	}
}
END_TEST

/* One body, and whatever can be different about it. */
static const struct body variants[] = {
	{ BASE + 0x10, 2, "name", "\1\2" },  { BASE + 0x11, 2, "name", "\1\2" },
	{ BASE + 0x10, 1, "name", "\1\2" },  { BASE + 0x10, 2, "nam", "\1\2" },
	{ BASE + 0x10, 2, "namf", "\1\2" },  { BASE + 0x10, 2, "name", "\1\3" },
	{ BASE + 0x10, 2, "name", NULL },    { BASE + 0x10, 3, "name", "\1\2\0" },
	{ BASE + 0x10, 2, "name ", "\1\2" },
};

START_TEST(test_id_tells_all)
{
	uint8_t ids[ARRAY_SIZE(variants)][ELF_BUILD_ID_SIZE];
	size_t i, j;

	for (i = 0; i < ARRAY_SIZE(variants); i++) {
		_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);

		add(image, &variants[i]);
		ck_assert_int_eq(elf_image_finish(image, ids[i]), 0);
		for (j = 0; j < i; j++)
			ck_assert_mem_ne(ids[i], ids[j], ELF_BUILD_ID_SIZE);
	}
}
END_TEST

/* -- What is refused --------------------------------------------------------------------- */

static const struct {
	uint64_t addr, size;
	const char *name;
	int want, want_with_code;
} refused[] = {
	{ BASE, 0, "x", ELF_IMAGE_E_INVALID, ELF_IMAGE_E_INVALID },
	{ BASE - 1, 2, "x", ELF_IMAGE_E_INVALID, ELF_IMAGE_E_INVALID },
	{ 0, 1, "x", ELF_IMAGE_E_INVALID, ELF_IMAGE_E_INVALID },
	{ BASE, 1, "", ELF_IMAGE_E_INVALID, ELF_IMAGE_E_INVALID },
	{ BASE, UINT64_MAX, "x", ELF_IMAGE_E_INVALID, ELF_IMAGE_E_INVALID },
	{ UINT64_MAX, 1, "x", ELF_IMAGE_E_INVALID, ELF_IMAGE_E_INVALID },
	{ UINT64_MAX - 1, 1, "x", 0, ELF_IMAGE_E_FULL },
	{ BASE + SPACE, 1, "x", 0, ELF_IMAGE_E_FULL },
	{ BASE, SPACE + 1, "x", 0, ELF_IMAGE_E_FULL },
	{ BASE + SPACE - 1, 1, "x", 0, 0 },
	{ BASE, SPACE, "x", 0, 0 },
};

static void add_refused(size_t i, const void *code, int want)
{
	_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);

	ck_assert_int_eq(elf_image_add(image, refused[i].addr, refused[i].size, refused[i].name,
				       strlen(refused[i].name), code),
			 want);
	ck_assert_uint_eq(elf_image_count(image), want == 0);
}

START_TEST(test_refused)
{
	static const uint8_t code[SPACE];

	add_refused((size_t)_i, NULL, refused[_i].want);
	add_refused((size_t)_i, code, refused[_i].want_with_code);
}
END_TEST

/* Ranges may overlap, but their code does not add up without end. */
START_TEST(test_code_is_bounded)
{
	_cleanup_image_ struct elf_image *image = NULL;
	static const uint8_t code[96];

	ck_assert_int_eq(elf_image_new(&image, EM_X86_64, 128), 0);
	ck_assert_int_eq(elf_image_add(image, BASE, 96, "a", 1, code), 0);
	ck_assert_int_eq(elf_image_add(image, BASE, 96, "b", 1, code), ELF_IMAGE_E_FULL);
	ck_assert_int_eq(elf_image_add(image, BASE, 96, "b", 1, NULL), 0);
	ck_assert_int_eq(elf_image_add(image, BASE + 96, 32, "c", 1, code), 0);
	ck_assert_uint_eq(elf_image_count(image), 3);
}
END_TEST

START_TEST(test_names)
{
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);
	_cleanup_close_ int fd = -1;
	char longest[40001];
	struct file f;

	memset(longest, 'n', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	ck_assert_int_eq(elf_image_add(image, BASE, 1, longest, sizeof(longest) - 1, NULL), 0);
	ck_assert_int_eq(elf_image_add(image, BASE + 1, 1, "cut\0here", 8, NULL), 0);
	ck_assert_int_eq(elf_image_add(image, BASE + 2, 1, "shorter than said", 7, NULL), 0);
	ck_assert_int_eq(elf_image_add(image, BASE + 3, 1, "\0here", 5, NULL), ELF_IMAGE_E_INVALID);
	fd = finish(image, id);
	read_back(fd, &f);
	longest[CAP_SYMBOL_NAME] = '\0';
	ck_assert_str_eq(symbol_name(&f, FIRST_BODY), longest);
	ck_assert_str_eq(symbol_name(&f, FIRST_BODY + 1), "cut");
	ck_assert_str_eq(symbol_name(&f, FIRST_BODY + 2), "shorter");
}
END_TEST

/* A name that is too long is cut where a character begins, whatever is in it. */
START_TEST(test_name_is_cut)
{
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);
	_cleanup_close_ int fd = -1;
	char name[CAP_SYMBOL_NAME + 8];
	struct file f;
	size_t i;

	memset(name, 'n', sizeof(name));
	for (i = 0; i < 4; i++) {
		/* four bytes, of which i are within the cap */
		memset(name + CAP_SYMBOL_NAME - 4, 'n', 8);
		memcpy(name + CAP_SYMBOL_NAME - i, "\xf0\x9f\x98\x80", 4);
		ck_assert_int_eq(elf_image_add(image, BASE + i, 1, name, sizeof(name), NULL), 0);
	}
	ck_assert_int_eq(elf_image_add(image, BASE + 4, 1, name, CAP_SYMBOL_NAME - 3, NULL), 0);
	memset(name, 0x80, sizeof(name));
	ck_assert_int_eq(elf_image_add(image, BASE + 5, 1, name, sizeof(name), NULL),
			 ELF_IMAGE_E_INVALID);
	fd = finish(image, id);
	read_back(fd, &f);
	for (i = 0; i < 4; i++)
		ck_assert_uint_eq(strlen(symbol_name(&f, FIRST_BODY + i)), CAP_SYMBOL_NAME - i);
	ck_assert_uint_eq(strlen(symbol_name(&f, FIRST_BODY + 4)), CAP_SYMBOL_NAME - 3);
}
END_TEST

/* -- Errors of writing ------------------------------------------------------------------- */

START_TEST(test_write_fails)
{
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);
	_cleanup_close_ int ro_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	_cleanup_close_ int fd = memfd_create("image", MFD_CLOEXEC);
	struct rlimit limit = { BASE + 8, RLIM_INFINITY };
	struct stat st;

	add(image, &bodies[3]);
	add(image, &bodies[0]);
	ck_assert_int_eq(elf_image_finish(image, id), 0);
	ck_assert_int_lt(elf_image_write(image, ro_fd), 0);
	ck_assert_int_lt(elf_image_write(image, -1), 0);
	signal(SIGXFSZ, SIG_IGN);
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	ck_assert_int_eq(elf_image_write(image, fd), -EFBIG);
	limit.rlim_cur = RLIM_INFINITY;
	ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
	/* and it is as good as before */
	ck_assert_int_eq(ftruncate(fd, 0), 0);
	ck_assert_int_eq(elf_image_write(image, fd), 0);
	ck_assert_int_eq(fstat(fd, &st), 0);
	ck_assert_int_gt(st.st_size, BASE + 0x1c);
}
END_TEST

START_TEST(test_write_only_fd)
{
	char path[] = "/tmp/test-elf-XXXXXX";
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_image_ struct elf_image *image = new_image(EM_X86_64);
	_cleanup_close_ int made_fd = mkstemp(path), fd = -1;
	struct file f;

	ck_assert_int_ge(made_fd, 0);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	unlink(path);
	add(image, &bodies[0]);
	ck_assert_int_eq(elf_image_finish(image, id), 0);
	ck_assert_int_eq(elf_image_write(image, fd), 0);
	read_back(made_fd, &f);
	ck_assert_str_eq(symbol_name(&f, FIRST_BODY), bodies[0].name);
}
END_TEST

/* -- The readers ------------------------------------------------------------------------- */

/* What a command with the image's path as its last word says; its exit status must be 0. */
static const struct {
	const char *program, *command;
	uint16_t machine;
	bool with_code;
	size_t n_bodies; /* the last one is behind .text, when that has bytes */
	const char *says;
} readers[] = {
	/* it holds symbols against the section */
	{ "eu-elflint", "eu-elflint --gnu-ld", EM_X86_64, true, 3, "No errors" },
	/* the rules for separate debug files, whose .text has no bytes either */
	{ "eu-elflint", "eu-elflint -d", EM_X86_64, false, 4, "No errors" },
	{ "eu-elflint", "eu-elflint", EM_AARCH64, true, 3, "No errors" },
	{ "nm", "nm -S", EM_X86_64, true, 4, "0000000000001010 000000000000000c T " HOT_NAME "\n" },
	{ "nm", "nm -S", EM_X86_64, true, 4, "0000000000003000 0000000000000100 T x\n" },
	{ "nm", "nm -S", EM_X86_64, false, 4,
	  "0000000000001010 000000000000000c T " HOT_NAME "\n" },
	{ "readelf", "readelf -nW", EM_AARCH64, false, 4, "NT_GNU_BUILD_ID" },
	{ "objdump", "objdump -d", EM_X86_64, true, 4, "<" HOT_NAME ">:\n    1010:\t55 " },
	{ "gdb", "gdb -nx -batch -ex 'info symbol 0x1014'", EM_X86_64, true, 4, HOT_NAME " + 4" },
	{ "gdb", "gdb -nx -batch -ex 'info symbol 0x1041'", EM_X86_64, false, 4,
	  OTHER_NAME " + 1" },
	{ "gdb", "gdb -nx -batch -ex 'disassemble 0x1010,0x101c'", EM_X86_64, true, 4,
	  "<" HOT_NAME "+8>:\tjne    0x1014" },
	{ "addr2line", "addr2line -fi -a 0x1014 -e", EM_X86_64, true, 4, HOT_NAME },
};

static bool have(const char *program)
{
	char command[64];

	snprintf(command, sizeof(command), "command -v %s >/dev/null", program);
	if (system(command) == 0)
		return true;
	printf("skipped: no %s here\n", program);
	return false;
}

START_TEST(test_reader)
{
	char path[] = "/tmp/test-elf-XXXXXX", command[256], text[8192];
	uint8_t id[ELF_BUILD_ID_SIZE];
	_cleanup_image_ struct elf_image *image = new_image(readers[_i].machine);
	_cleanup_close_ int fd = -1;
	size_t i, n;
	FILE *out;

	if (!have(readers[_i].program))
		return;
	for (i = 0; i < readers[_i].n_bodies; i++) {
		struct body b = bodies[i];

		if (!readers[_i].with_code)
			b.code = NULL;
		add(image, &b);
	}
	fd = mkstemp(path);
	ck_assert_int_ge(fd, 0);
	ck_assert_int_eq(elf_image_finish(image, id), 0);
	ck_assert_int_eq(elf_image_write(image, fd), 0);
	snprintf(command, sizeof(command), "%s %s 2>&1", readers[_i].command, path);
	out = popen(command, "r");
	ck_assert_ptr_nonnull(out);
	n = fread(text, 1, sizeof(text) - 1, out);
	text[n] = '\0';
	i = (size_t)pclose(out);
	unlink(path);
	ck_assert_msg(i == 0 && strstr(text, readers[_i].says), "%s (status %zu):\n%s", command, i,
		      text);
}
END_TEST

int main(void)
{
	Suite *s = suite_create("elf");
	TCase *tc = tcase_create("layout");
	SRunner *sr;
	int failed;

	tcase_add_test(tc, test_headers);
	tcase_add_test(tc, test_symbols);
	tcase_add_test(tc, test_text);
	tcase_add_test(tc, test_text_ends_with_code);
	tcase_add_test(tc, test_names_only);
	tcase_add_test(tc, test_empty);
	tcase_add_test(tc, test_other_machine);
	suite_add_tcase(s, tc);
	tc = tcase_create("id");
	tcase_add_test(tc, test_order_is_nothing);
	tcase_add_test(tc, test_code_in_order);
	tcase_add_test(tc, test_id_tells_all);
	suite_add_tcase(s, tc);
	tc = tcase_create("bounds");
	tcase_add_loop_test(tc, test_refused, 0, ARRAY_SIZE(refused));
	tcase_add_test(tc, test_code_is_bounded);
	tcase_add_test(tc, test_names);
	tcase_add_test(tc, test_name_is_cut);
	suite_add_tcase(s, tc);
	tc = tcase_create("writing");
	tcase_add_test(tc, test_write_fails);
	tcase_add_test(tc, test_write_only_fd);
	suite_add_tcase(s, tc);
	tc = tcase_create("readers");
	tcase_add_loop_test(tc, test_reader, 0, ARRAY_SIZE(readers));
	suite_add_tcase(s, tc);

	sr = srunner_create(s);
	srunner_run_all(sr, CK_NORMAL);
	failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
