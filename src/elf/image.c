/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing a synthetic ELF image.
 *
 * What is added is kept as one array of entries, one buffer of names and one of code bytes, so
 * that adding is cheap. elf_image_finish() sorts the entries and turns all that into what the file
 * holds: the symbol table, the string table in the same order, and the bytes of .text. So the file
 * too depends on the content alone, byte for byte.
 *
 *   0        ELF header, program header, section headers, build-id note, section names
 *   0x1000   .text, address = file offset: perf hands objdump the one, symbols carry the other
 *   then     .symtab (global sized functions of .text: others are skipped by perf), .strtab
 *
 * The one program header says "address = file offset" again, for those who ask it and not the
 * section: blazesym, and perf 5.19, which drops symbols without one. It says so of all addresses,
 * in the file or not: blazesym looks up addresses only up to p_filesz.
 *
 * An image without any code bytes has a .text of type NOBITS: the file is then only as large as its
 * names, whatever the address space. With code, .text is one block of memory (a block for each
 * body would cost two system calls each) whose gaps are pages never touched; libelf would fill
 * them in 4 KiB steps, and can leave no holes. It ends where the last body with code ends, or a
 * large body without would make a large file of nothing. Symbols behind that end still say .text,
 * since perf, blazesym and nm go by value and size of a symbol alone; only eu-elflint, which holds
 * them against the section, and gdb, which looks for a section first, do not take to them.
 *
 * The build-id is the SHA-1 of machine, symbols, names and code, as a hash of content and not as
 * a defence: who can choose the content of an image can give it any name anyway. Gaps are left out
 * of it, for they follow from the rest and can be large.
 *
 * The first symbol is named "," and is nothing. perf asks addr2line for an address and then for
 * ",", to see where the answer ends; addr2line takes that for the name of a symbol and compares it
 * with every one of them, demangled, which with 150,000 is 11 ms a question. This one ends the
 * search at once, with the same answer, an address of zero (which newer perfs look for) of which
 * nothing is known. It is an undefined one: any other without a size is one without an end to
 * blazesym, and what lies before the first body would be in it.
 *
 * libelf is asked with ELF_F_LAYOUT, for the place of .text is fixed.
 */
#include "elf/image.h"

#include <errno.h>
#include <libelf.h>
#include <nettle/sha1.h>
#include <string.h>

#include "base/buf.h"
#include "base/caps.h"
#include "base/utf.h"

#define NO_CODE       UINT64_MAX
#define FIRST_ENTRIES 256u
#define LOCALS        2u    /* symbols before the bodies': the null one and the comma */
#define NAMES_HEAD    "\0," /* their names */

struct entry {
	uint64_t addr, size;
	uint64_t code;     /* offset in image->code, or NO_CODE */
	uint32_t name;     /* offset in image->names, NUL-terminated */
	uint32_t name_len; /* without the NUL */
};

struct elf_image {
	uint16_t machine;
	uint64_t max_bytes;
	uint64_t space;     /* all addresses, from the base on */
	uint64_t text_size; /* up to where there is code; 0: there is none */

	struct entry *entries; /* NULL when finished */
	size_t n_entries, size_entries;
	struct buf names; /* begins with NAMES_HEAD; finished: .strtab */
	struct buf code;

	/* when finished */
	Elf64_Sym *symbols; /* LOCALS and n_entries */
	uint8_t *text;      /* NULL if there is no code at all */
	uint8_t id[ELF_BUILD_ID_SIZE];
};

int elf_image_new(struct elf_image **outp, uint16_t machine, uint64_t max_bytes)
{
	_cleanup_(elf_image_freep) struct elf_image *image = calloc(1, sizeof(*image));
	int r;

	if (!image)
		return -ENOMEM;
	image->machine = machine;
	image->max_bytes = MIN(max_bytes, UINT64_MAX - ELF_IMAGE_BASE);
	/* st_name has 32 bits; the cap is below that */
	buf_init(&image->names, CAP_NAME_BYTES);
	buf_init(&image->code, image->max_bytes);
	r = buf_append(&image->names, NAMES_HEAD, sizeof(NAMES_HEAD));
	if (r)
		return r;
	*outp = TAKE_PTR(image);
	return 0;
}

void elf_image_free(struct elf_image *image)
{
	if (!image)
		return;
	buf_deinit(&image->names);
	buf_deinit(&image->code);
	free(image->entries);
	free(image->symbols);
	free(image->text);
	free(image);
}

size_t elf_image_count(const struct elf_image *image)
{
	return image->n_entries;
}

/* -- Adding ---------------------------------------------------------------------------- */

static int reserve_entry(struct elf_image *image)
{
	size_t size = image->size_entries ? 2 * image->size_entries : FIRST_ENTRIES;
	struct entry *entries;

	if (image->n_entries < image->size_entries)
		return 0;
	if (image->n_entries >= CAP_BODIES)
		return ELF_IMAGE_E_FULL;
	entries = realloc(image->entries, size * sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	image->entries = entries;
	image->size_entries = size;
	return 0;
}

static const uint8_t code_zeros[16];

/*
 * How many zeros come before the next code in the buffer: code that is added in the order of its
 * addresses, without large gaps, is .text then and need not be copied once more.
 */
static uint64_t code_gap(const struct elf_image *image, uint64_t addr)
{
	uint64_t gap = addr - ELF_IMAGE_BASE - image->code.len;

	return gap < sizeof(code_zeros) ? gap : 0;
}

/* A refusal is the answer to this call only: the next, smaller one may fit. */
static int reserve_bytes(struct buf *b, uint64_t n)
{
	int r = buf_reserve(b, n);

	b->error = 0;
	return r == -ENOSPC ? ELF_IMAGE_E_FULL : r;
}

int elf_image_add(struct elf_image *image, uint64_t addr, uint64_t size, const char *name,
		  size_t name_len, const void *code)
{
	uint64_t gap = code ? code_gap(image, addr) : 0, end;
	struct entry *e;
	int r;

	name_len = utf8_cut(name, strnlen(name, name_len), CAP_SYMBOL_NAME);
	if (size == 0 || addr < ELF_IMAGE_BASE || size > UINT64_MAX - addr || name_len == 0)
		return ELF_IMAGE_E_INVALID;
	end = addr + size - ELF_IMAGE_BASE;
	if (code && end > image->max_bytes)
		return ELF_IMAGE_E_FULL;
	r = reserve_entry(image);
	if (r)
		return r;
	r = reserve_bytes(&image->names, name_len + 1);
	if (r)
		return r;
	r = reserve_bytes(&image->code, code ? gap + size : 0);
	if (r)
		return r;

	e = &image->entries[image->n_entries++];
	*e = (struct entry){
		.addr = addr,
		.size = size,
		.code = code ? image->code.len + gap : NO_CODE,
		.name = (uint32_t)image->names.len,
		.name_len = (uint32_t)name_len,
	};
	/* there is room for all of it */
	buf_append(&image->names, name, name_len);
	buf_putc(&image->names, '\0');
	if (code) {
		buf_append(&image->code, code_zeros, gap);
		buf_append(&image->code, code, size);
		image->text_size = MAX(image->text_size, end);
	}
	image->space = MAX(image->space, end);
	return 0;
}

/* -- Finishing ------------------------------------------------------------------------- */

static const char *entry_name(const struct elf_image *image, const struct entry *e)
{
	return (const char *)image->names.data + e->name;
}

static int compare_u64(uint64_t a, uint64_t b)
{
	return a < b ? -1 : a > b;
}

/* By address; what follows makes the order one of content alone. */
static int compare_entries(const void *left, const void *right, void *data)
{
	const struct elf_image *image = data;
	const struct entry *a = left, *b = right;
	int r;

	r = compare_u64(a->addr, b->addr);
	if (r)
		return r;
	r = compare_u64(a->size, b->size);
	if (r)
		return r;
	r = strcmp(entry_name(image, a), entry_name(image, b));
	if (r)
		return r;
	if (a->code == NO_CODE || b->code == NO_CODE)
		return compare_u64(b->code == NO_CODE, a->code == NO_CODE);
	return memcmp(image->code.data + a->code, image->code.data + b->code, a->size);
}

static bool is_sorted(struct elf_image *image)
{
	size_t i;

	for (i = 1; i < image->n_entries; i++) {
		if (compare_entries(&image->entries[i - 1], &image->entries[i], image) > 0)
			return false;
	}
	return true;
}

/* Sorts the entries, and the names into the same order. */
static int sort_entries(struct elf_image *image)
{
	_cleanup_buf_ struct buf names;
	size_t i;
	int r;

	buf_init(&names, CAP_NAME_BYTES);
	/* before anything is changed: then it can be tried again */
	r = buf_reserve(&names, image->names.len);
	if (r)
		return r;
	qsort_r(image->entries, image->n_entries, sizeof(*image->entries), compare_entries, image);
	buf_append(&names, NAMES_HEAD, sizeof(NAMES_HEAD));
	for (i = 0; i < image->n_entries; i++) {
		struct entry *e = &image->entries[i];
		const char *name = entry_name(image, e);

		e->name = (uint32_t)names.len;
		buf_append(&names, name, (size_t)e->name_len + 1);
	}
	buf_deinit(&image->names);
	image->names = names;
	buf_init(&names, 0);
	return 0;
}

static int make_symbols(const struct elf_image *image, Elf64_Sym **outp)
{
	Elf64_Sym *symbols = calloc(image->n_entries + LOCALS, sizeof(*symbols));
	size_t i;

	if (!symbols)
		return -ENOMEM;
	symbols[1] = (Elf64_Sym){ .st_name = 1, .st_shndx = SHN_UNDEF };
	for (i = 0; i < image->n_entries; i++) {
		const struct entry *e = &image->entries[i];

		symbols[i + LOCALS] = (Elf64_Sym){
			.st_name = e->name,
			.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
			.st_shndx = 1, /* .text */
			.st_value = e->addr,
			.st_size = e->size,
		};
	}
	*outp = symbols;
	return 0;
}

/* Is the buffer .text, as it is? */
static bool code_is_text(const struct elf_image *image)
{
	size_t i;

	for (i = 0; i < image->n_entries; i++) {
		const struct entry *e = &image->entries[i];

		if (e->code != NO_CODE && e->code != e->addr - ELF_IMAGE_BASE)
			return false;
	}
	return image->code.len == image->text_size;
}

/* The bytes of .text, or NULL when there are none or the buffer of code is that. */
static int make_text(const struct elf_image *image, uint8_t **outp)
{
	uint8_t *text;
	size_t i;

	*outp = NULL;
	if (image->text_size == 0 || code_is_text(image))
		return 0;
	/* fresh pages read as zeros without being there */
	text = calloc(1, image->text_size);
	if (!text)
		return -ENOMEM;
	for (i = 0; i < image->n_entries; i++) {
		const struct entry *e = &image->entries[i];

		if (e->code != NO_CODE)
			memcpy(text + (e->addr - ELF_IMAGE_BASE), image->code.data + e->code,
			       e->size);
	}
	*outp = text;
	return 0;
}

static void hash_number(struct sha1_ctx *sha, uint64_t v)
{
	sha1_update(sha, sizeof(v), (const uint8_t *)&v);
}

static void make_id(struct elf_image *image)
{
	struct sha1_ctx sha;
	uint64_t i;

	sha1_init(&sha);
	hash_number(&sha, image->machine);
	hash_number(&sha, image->n_entries);
	sha1_update(&sha, (image->n_entries + LOCALS) * sizeof(*image->symbols),
		    (const uint8_t *)image->symbols);
	sha1_update(&sha, image->names.len, image->names.data);
	for (i = 0; i < image->n_entries; i++) {
		const struct entry *e = &image->entries[i];

		if (e->code == NO_CODE)
			continue;
		hash_number(&sha, i);
		sha1_update(&sha, e->size, image->code.data + e->code);
	}
	sha1_digest(&sha, ELF_BUILD_ID_SIZE, image->id);
}

int elf_image_finish(struct elf_image *image, uint8_t id[ELF_BUILD_ID_SIZE])
{
	_cleanup_free_ Elf64_Sym *symbols = NULL;
	_cleanup_free_ uint8_t *text = NULL;
	int r;

	r = is_sorted(image) ? 0 : sort_entries(image);
	if (r)
		return r;
	r = make_symbols(image, &symbols);
	if (r)
		return r;
	r = make_text(image, &text);
	if (r)
		return r;
	image->symbols = TAKE_PTR(symbols);
	image->text = TAKE_PTR(text);
	make_id(image);
	free(TAKE_PTR(image->entries));
	if (!image->text)
		image->text = TAKE_PTR(image->code.data);
	buf_deinit(&image->code);
	memcpy(id, image->id, ELF_BUILD_ID_SIZE);
	return 0;
}

/* -- Writing --------------------------------------------------------------------------- */

enum section {
	SECTION_NULL,
	SECTION_TEXT,
	SECTION_SYMTAB,
	SECTION_STRTAB,
	SECTION_NOTE,
	SECTION_SHSTRTAB,
	N_SECTIONS,
};

/* Name offsets in it are those of the table in write_sections(). */
static const char section_names[] = "\0.text\0.symtab\0.strtab\0.note.gnu.build-id\0.shstrtab";

#define NOTE_HEADER      "\4\0\0\0\24\0\0\0\3\0\0\0GNU" /* name 4, id 20, type 3 */
#define NOTE_HEADER_SIZE sizeof(NOTE_HEADER)
#define NOTE_SIZE        (NOTE_HEADER_SIZE + ELF_BUILD_ID_SIZE)

/* The first page. */
#define PHDR_OFFSET     sizeof(Elf64_Ehdr)
#define SHDRS_OFFSET    (PHDR_OFFSET + sizeof(Elf64_Phdr))
#define NOTE_OFFSET     (SHDRS_OFFSET + N_SECTIONS * sizeof(Elf64_Shdr))
#define SHSTRTAB_OFFSET (NOTE_OFFSET + NOTE_SIZE)

_Static_assert(SHSTRTAB_OFFSET + sizeof(section_names) <= ELF_IMAGE_BASE, "headers fit");

DEFINE_CLEANUP(Elf *, elf_end)

/* libelf has no errno of its own for what the system refused. */
static int write_error(void)
{
	return errno ? -errno : -EIO;
}

static int write_section(Elf *elf, const Elf64_Shdr *header, const void *bytes, Elf_Type type)
{
	Elf_Scn *section = elf_newscn(elf);
	Elf64_Shdr *shdr = section ? elf64_getshdr(section) : NULL;
	Elf_Data *data = shdr ? elf_newdata(section) : NULL;

	if (!data)
		return write_error();
	*shdr = *header;
	data->d_buf = (void *)(uintptr_t)bytes; /* only read */
	data->d_size = header->sh_size;
	data->d_align = header->sh_addralign;
	data->d_type = type;
	data->d_version = EV_CURRENT;
	return 0;
}

static int write_headers(Elf *elf, const struct elf_image *image)
{
	Elf64_Ehdr *ehdr = elf64_newehdr(elf);
	Elf64_Phdr *phdr = ehdr ? elf64_newphdr(elf, 1) : NULL;

	if (!phdr)
		return write_error();
	ehdr->e_ident[EI_DATA] = ELFDATA2LSB;
	ehdr->e_type = ET_DYN;
	ehdr->e_machine = image->machine;
	ehdr->e_version = EV_CURRENT;
	ehdr->e_phoff = PHDR_OFFSET;
	ehdr->e_shoff = SHDRS_OFFSET;
	ehdr->e_shstrndx = SECTION_SHSTRTAB;
	*phdr = (Elf64_Phdr){
		.p_type = PT_LOAD,
		.p_flags = PF_R | PF_X,
		.p_filesz = ELF_IMAGE_BASE + image->space,
		.p_memsz = ELF_IMAGE_BASE + image->space,
		.p_align = ELF_IMAGE_BASE,
	};
	elf_flagelf(elf, ELF_C_SET, ELF_F_LAYOUT);
	return 0;
}

static int write_sections(Elf *elf, const struct elf_image *image)
{
	uint64_t text_end = ELF_IMAGE_BASE + image->text_size;
	uint64_t symtab_offset = (text_end + 7) & ~(uint64_t)7;
	uint64_t symtab_size = (image->n_entries + LOCALS) * sizeof(*image->symbols);
	uint8_t note[NOTE_SIZE];
	const struct {
		Elf64_Shdr header;
		const void *bytes;
		Elf_Type type;
	} sections[N_SECTIONS] = {
		[SECTION_TEXT] = { { .sh_name = 1,
				     .sh_type = image->text ? SHT_PROGBITS : SHT_NOBITS,
				     .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
				     .sh_addr = ELF_IMAGE_BASE,
				     .sh_offset = ELF_IMAGE_BASE,
				     .sh_size = image->text ? image->text_size : image->space,
				     .sh_addralign = 16 },
				   image->text,
				   ELF_T_BYTE },
		[SECTION_SYMTAB] = { { .sh_name = 7,
				       .sh_type = SHT_SYMTAB,
				       .sh_offset = symtab_offset,
				       .sh_size = symtab_size,
				       .sh_link = SECTION_STRTAB,
				       .sh_info = LOCALS, /* the first global one */
				       .sh_addralign = 8,
				       .sh_entsize = sizeof(*image->symbols) },
				     image->symbols,
				     ELF_T_SYM },
		[SECTION_STRTAB] = { { .sh_name = 15,
				       .sh_type = SHT_STRTAB,
				       .sh_offset = symtab_offset + symtab_size,
				       .sh_size = image->names.len,
				       .sh_addralign = 1 },
				     image->names.data,
				     ELF_T_BYTE },
		[SECTION_NOTE] = { { .sh_name = 23,
				     .sh_type = SHT_NOTE,
				     .sh_offset = NOTE_OFFSET,
				     .sh_size = NOTE_SIZE,
				     .sh_addralign = 4 },
				   note,
				   ELF_T_BYTE },
		[SECTION_SHSTRTAB] = { { .sh_name = 42,
					 .sh_type = SHT_STRTAB,
					 .sh_offset = SHSTRTAB_OFFSET,
					 .sh_size = sizeof(section_names),
					 .sh_addralign = 1 },
				       section_names,
				       ELF_T_BYTE },
	};
	size_t i;
	int r;

	memcpy(note, NOTE_HEADER, NOTE_HEADER_SIZE);
	memcpy(note + NOTE_HEADER_SIZE, image->id, ELF_BUILD_ID_SIZE);
	for (i = SECTION_TEXT; i < N_SECTIONS; i++) {
		r = write_section(elf, &sections[i].header, sections[i].bytes, sections[i].type);
		if (r)
			return r;
	}
	return elf_update(elf, ELF_C_WRITE) < 0 ? write_error() : 0;
}

int elf_image_write(const struct elf_image *image, int fd)
{
	_cleanup_(elf_endp) Elf *elf = NULL;
	int r;

	errno = 0;
	elf_version(EV_CURRENT);
	elf = elf_begin(fd, ELF_C_WRITE, NULL);
	if (!elf)
		return write_error();
	r = write_headers(elf, image);
	if (r)
		return r;
	return write_sections(elf, image);
}
