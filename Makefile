# SPDX-License-Identifier: Apache-2.0
#
# make             build/clrsym, build/clrsymd, build/libclrsym.* (development build: warnings are
#                  errors)
# make RELEASE=1   optimised for shipping, warnings stay warnings
# make SAN=1 ...   the same below build/san, with ASan and UBSan
# make CC=clang    works everywhere
# make tests       everything the tests run (scripts/test runs them)
# make check       unit tests, fuzz corpora replayed, layering
# make examples    build/examples
# make bench       the benches, each printing its figure against a reference
# make fuzz        libFuzzer on every decoder, TIME seconds each

CC ?= gcc
ifeq ($(origin CC),default)
CC := gcc
endif
TIME ?= 60
TOP := build
# make V=1 shows whole command lines
Q := $(if $(V),,@)
say = $(if $(V),@:,@printf '  %-4s %s\n' $(1) $@)

O := $(TOP)$(if $(SAN),/san)$(if $(filter clang%,$(notdir $(CC))),/clang)

VERSION := $(shell cat VERSION)

PKGS := jansson libelf libzstd nettle
DAEMON_PKGS := libsystemd
TEST_PKGS := check

WARN := -Wall -Wextra -Wpointer-arith -Wstrict-prototypes -Wmissing-prototypes -Wshadow \
	-Wwrite-strings -Wvla -Wundef -Wcast-qual -Wformat=2 -Wimplicit-fallthrough \
	$(if $(RELEASE),,-Werror)
comma := ,
SANFLAGS := $(if $(SAN),-fsanitize=address$(comma)undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
CFLAGS ?= $(if $(SAN),-O1,-O2) -g
ALL_CFLAGS = -std=gnu11 $(CFLAGS) $(WARN) $(SANFLAGS) -D_GNU_SOURCE -Isrc -I. \
	-DCLRSYM_VERSION='"$(VERSION)"' -fstack-protector-strong -fPIE -MMD -MP \
	$(shell pkg-config --cflags $(PKGS))
ALL_LDFLAGS = $(LDFLAGS) $(SANFLAGS) -pie -Wl,-z,relro,-z,now
LIBS := $(shell pkg-config --libs $(PKGS))
TEST_CFLAGS := $(shell pkg-config --cflags $(TEST_PKGS))
TEST_LIBS := $(shell pkg-config --libs $(TEST_PKGS))

# Everything but the programs' own rooms and the public library goes into one archive.
CORE_SRC := $(filter-out src/cli/% src/daemon/% src/lib/%,$(wildcard src/*/*.c))
CLI_SRC := $(wildcard src/cli/*.c)
DAEMON_SRC := $(wildcard src/daemon/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c)
TORTURE_SRC := $(wildcard tests/torture/torture_*.c)
FUZZ_SRC := $(wildcard tests/fuzz/fuzz_*.c)
FAKERT_SRC := $(wildcard tests/fakert/*.c)
BENCH_SRC := $(wildcard tests/bench/bench_*.c)
TOOL_SRC := $(wildcard tests/tools/*.c)

objs = $(patsubst %.c,$(O)/obj/%.o,$(1))
CORE := $(O)/libcore.a
UNIT := $(patsubst tests/unit/%.c,$(O)/tests/%,$(UNIT_SRC))
TORTURE := $(patsubst tests/torture/%.c,$(O)/tests/%,$(TORTURE_SRC))
FUZZ_REPLAY := $(patsubst tests/fuzz/fuzz_%.c,$(O)/tests/replay_%,$(FUZZ_SRC))
BENCH := $(patsubst tests/bench/%.c,$(O)/tests/%,$(BENCH_SRC))
TOOLS := $(patsubst tests/tools/%.c,$(O)/tests/%,$(TOOL_SRC))
FAKERT := $(if $(FAKERT_SRC),$(O)/tests/fakert)

# libclrsym: of the rooms below it only what it needs is linked in.
SOVERSION := 0
LIB_SRC := $(wildcard src/lib/*.c)
LIB_CORE_SRC := $(wildcard src/base/*.c src/names/*.c src/query/*.c)
LIB_PKGS := jansson
LIB_SO := $(O)/libclrsym.so.$(SOVERSION)
LIB_A := $(O)/libclrsym.a
LIB := $(LIB_SO) $(O)/libclrsym.so $(LIB_A)
LIB_TESTS := $(addprefix $(O)/tests/,test_libclrsym test_libclrsym_cxx test_libclrsym_abi \
	torture_libclrsym)
picobjs = $(patsubst %.c,$(O)/pic/%.o,$(1))

.PHONY: examples all tests unit check layers bench fuzz fuzzers clean install format
.SECONDARY:

all: $(O)/clrsym $(O)/clrsymd $(LIB)

$(O)/obj/%.o: %.c Makefile VERSION
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) $(if $(findstring tests/,$<),$(TEST_CFLAGS)) -c -o $@ $<

$(CORE): $(call objs,$(CORE_SRC))
	@rm -f $@
	$(call say,AR)
	$(Q)ar rcs $@ $^

$(O)/clrsym: $(call objs,$(CLI_SRC)) $(CORE)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

$(O)/clrsymd: $(call objs,$(DAEMON_SRC)) $(CORE)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS) $(shell pkg-config --libs $(DAEMON_PKGS))

$(O)/pic/%.o: %.c Makefile VERSION
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(ALL_CFLAGS) -fPIC -fvisibility=hidden -c -o $@ $<

$(O)/pic/core.a: $(call picobjs,$(LIB_CORE_SRC))
	@rm -f $@
	$(call say,AR)
	$(Q)ar rcs $@ $^

LIB_LIBS := $(shell pkg-config --libs $(LIB_PKGS)) -pthread
$(LIB_SO): $(call picobjs,$(LIB_SRC)) $(O)/pic/core.a src/lib/libclrsym.map
	$(call say,LD)
	$(Q)$(CC) $(LDFLAGS) $(SANFLAGS) -shared -Wl,-soname,$(@F) -Wl,-z,relro,-z,now \
		-Wl,--version-script=src/lib/libclrsym.map -o $@ $(filter %.o %.a,$^) $(LIB_LIBS)

$(O)/libclrsym.so: $(LIB_SO)
	@ln -sf $(<F) $@

# One object in which only the public names are left, so that none of ours meets one of the program's.
$(O)/pic/clrsym.o: $(call picobjs,$(LIB_SRC)) $(O)/pic/core.a
	$(call say,LD)
	$(Q)$(CC) -r -nostdlib -o $@ $^
	$(Q)objcopy --localize-hidden $@

$(LIB_A): $(O)/pic/clrsym.o
	@rm -f $@
	$(call say,AR)
	$(Q)ar rcs $@ $^

# Allocations of the torture programs go through a shim that makes the n-th one fail.
WRAP := malloc calloc realloc strdup
$(O)/tests/torture_%: $(O)/obj/tests/torture/torture_%.o $(O)/obj/tests/torture/shim.o $(CORE)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) $(addprefix -Wl$(comma)--wrap=,$(WRAP)) -o $@ $^ $(LIBS)

$(O)/tests/test_%: $(O)/obj/tests/unit/test_%.o $(CORE)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS) $(TEST_LIBS)

$(O)/tests/bench_%: $(O)/obj/tests/bench/bench_%.o $(CORE)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS) -lm

$(O)/tests/replay_%: $(O)/obj/tests/fuzz/fuzz_%.o $(O)/obj/tests/fuzz/replay.o $(CORE)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

$(O)/tests/fakert: $(call objs,$(FAKERT_SRC)) $(CORE)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)

$(O)/tests/%: $(O)/obj/tests/tools/%.o $(CORE)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS)
$(O)/tests/elfoffset: $(O)/obj/examples/blazesym-image.o

LIB_FAKE := $(call objs,tests/lib/fake.c tests/lib/server.c) $(LIB_A) $(CORE)
$(O)/tests/test_libclrsym: $(O)/obj/tests/lib/test_libclrsym.o $(LIB_FAKE)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) -o $@ $^ $(LIBS) $(TEST_LIBS) -pthread

$(O)/tests/torture_libclrsym: $(O)/obj/tests/lib/torture_libclrsym.o \
		$(O)/obj/tests/torture/shim.o $(LIB_FAKE)
	@mkdir -p $(@D)
	$(call say,LD)
	$(Q)$(CC) $(ALL_LDFLAGS) $(addprefix -Wl$(comma)--wrap=,$(WRAP)) -o $@ $^ \
		$(LIBS) $(TEST_LIBS) -pthread

# The header as C++ sees it, and the shared library.
CXX_FLAGS := -std=c++11 -Wall -Wextra -Werror -pedantic
$(O)/tests/test_libclrsym_cxx: tests/lib/every_call.cc include/clrsym.h $(LIB)
	@mkdir -p $(@D)
	$(call say,CXX)
	$(Q)$(CXX) $(CXX_FLAGS) -g $(SANFLAGS) -Iinclude -o $@ $< -L$(O) -lclrsym \
		-Wl,-rpath,'$$ORIGIN/..'

$(O)/tests/test_libclrsym_abi: tests/lib/abi $(LIB)
	@mkdir -p $(@D)
	$(Q)install -m 0755 $< $@

unit: $(UNIT)
tests: all $(LIB_TESTS) $(UNIT) $(TORTURE) $(FUZZ_REPLAY) $(FAKERT) $(TOOLS) $(BENCH)

layers:
	scripts/layers

check: tests layers
	tests/run-unit $(O)

bench: all $(BENCH) $(TOOLS) $(FAKERT)
	tests/bench/run $(O)

# libFuzzer needs clang; the decoders are compiled again with its coverage.
FUZZ_O := $(TOP)/fuzz
fuzzers: $(patsubst tests/fuzz/%.c,$(FUZZ_O)/%,$(FUZZ_SRC))
$(FUZZ_O)/fuzz_%: tests/fuzz/fuzz_%.c $(CORE_SRC) $(wildcard src/*/*.h)
	@mkdir -p $(@D)
	$(call say,FUZZ)
	$(Q)clang -std=gnu11 -O1 -g -D_GNU_SOURCE -Isrc -I. -DCLRSYM_VERSION='"$(VERSION)"' \
		-fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-o $@ $< $(CORE_SRC) $(LIBS)

fuzz: fuzzers
	tests/fuzz/run $(FUZZ_O) $(TIME)

# A sampler of one's own, in C with libbpf. Not built by anything else: it needs clang and libbpf.
BPF_CFLAGS := -O2 -g -Wall -Werror -target bpf -I/usr/include/$(shell gcc -print-multiarch)
# With blazesym's C library as `cargo cinstall` leaves it, too; BLAZESYM=PREFIX: somewhere else.
BLAZESYM ?= $(patsubst %/include/blazesym.h,%,$(firstword $(shell \
	grep -ls process_dispatch /usr/local/include/blazesym.h /usr/include/blazesym.h)))
examples: $(O)/examples/sampler $(O)/examples/sampler.bpf.o $(if $(BLAZESYM),$(O)/examples/blazesym)
$(O)/examples/blazesym: examples/blazesym.c examples/blazesym-image.c examples/blazesym-image.h
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) -std=gnu11 $(CFLAGS) $(WARN) $(SANFLAGS) -D_GNU_SOURCE \
		-I$(BLAZESYM)/include -o $@ $(filter %.c,$^) \
		-L$(BLAZESYM)/lib -lblazesym_c -Wl,-rpath,$(BLAZESYM)/lib
$(O)/examples/sampler.bpf.o: examples/sampler.bpf.c examples/sampler.h
	@mkdir -p $(@D)
	$(call say,BPF)
	$(Q)clang $(BPF_CFLAGS) -c -o $@ $<
$(O)/examples/sampler: examples/sampler.c examples/sampler.h include/clrsym.h $(LIB)
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) -std=gnu11 $(CFLAGS) $(WARN) $(SANFLAGS) -Iinclude -o $@ $< -L$(O) -lclrsym -lbpf \
		-Wl,-rpath,'$$ORIGIN/..'

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
# always anew: PREFIX may be another this time
.PHONY: $(O)/clrsym.pc
$(O)/clrsym.pc: packaging/clrsym.pc.in
	$(Q)sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@LIBDIR@|$(LIBDIR)|' -e 's|@VERSION@|$(VERSION)|' $< >$@

install: all $(O)/clrsym.pc
	install -D -m 0755 $(O)/clrsym $(DESTDIR)$(PREFIX)/bin/clrsym
	install -D -m 0755 $(O)/clrsymd $(DESTDIR)$(PREFIX)/sbin/clrsymd
	install -D -m 0644 include/clrsym.h $(DESTDIR)$(PREFIX)/include/clrsym.h
	install -D -m 0755 $(LIB_SO) $(DESTDIR)$(LIBDIR)/$(notdir $(LIB_SO))
	ln -sf $(notdir $(LIB_SO)) $(DESTDIR)$(LIBDIR)/libclrsym.so
	install -D -m 0644 $(LIB_A) $(DESTDIR)$(LIBDIR)/libclrsym.a
	install -D -m 0644 $(O)/clrsym.pc $(DESTDIR)$(LIBDIR)/pkgconfig/clrsym.pc

format:
	clang-format -i $(shell git ls-files '*.c' '*.h')

clean:
	rm -rf $(TOP)

-include $(shell find $(O)/obj $(O)/pic -name '*.d' 2>/dev/null)
