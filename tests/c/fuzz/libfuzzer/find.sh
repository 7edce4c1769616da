#!/bin/bash
# Prints CMake's options for a compiler that libFuzzer guides: clang with its runtime, or gcc with libFuzzer.a, that is installed
# or, on Debian and Ubuntu, taken out of their package into the folder FOLDER. Usage: find.sh FOLDER
set -eu
folder=$1
mkdir -p "$folder"
printf 'int LLVMFuzzerTestOneInput(const unsigned char *data, unsigned long size) { return size && !data; }' > "$folder/try.c"

links() {
  "$@" "$folder/try.c" -o "$folder/try" > "$folder/try.log" 2>&1
}

for clang in clang $(compgen -c clang- | grep -E '^clang-[0-9]+$' | sort -rut- -k2n); do
  if command -v "$clang" > /dev/null && links "$clang" -fsanitize=address,undefined,fuzzer; then
    echo "-DCMAKE_C_COMPILER=$clang"
    exit
  fi
done
find_archive() {
  find "$folder/root" /usr/lib/llvm-*/lib /usr/lib/clang -name libFuzzer.a -o -name libclang_rt.fuzzer-x86_64.a 2> /dev/null |
    head -n 1
}
if [ -z "$(find_archive)" ] && command -v apt-cache > /dev/null && command -v dpkg > /dev/null; then
  package=$(apt-cache search --names-only '^libfuzzer-[0-9]+-dev$' | sort -V | tail -n 1 | cut -d' ' -f1)
  [ -z "$package" ] || (cd "$folder" && apt-get download "$package" && dpkg -x "./$package"_*.deb root) > "$folder/apt.log" 2>&1 ||
    true
fi
archive=$(find_archive)
if [ -n "$archive" ] && links gcc -fsanitize=address,undefined "$archive" -lstdc++ -lpthread -lm; then
  echo "-DCMAKE_C_COMPILER=gcc -DINFC_LIBFUZZER_ARCHIVE=$(realpath "$archive")"
  exit
fi
cat >&2 << 'TEXT'
Coverage-guided fuzzing needs libFuzzer: clang with its runtime (of Debian: clang, libclang-rt-14-dev), or gcc and libFuzzer.a (g++,
libfuzzer-14-dev). Without it make test and make test-all still run the kept corpus, and inputs made of it.
TEXT
exit 1
