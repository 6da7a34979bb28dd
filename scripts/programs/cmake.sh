# needs: cmake make gcc g++
mkdir s
cat >s/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.10)
project(demo C CXX)
enable_testing()
add_library(part STATIC part.c)
add_executable(demo demo.cc)
target_link_libraries(demo part)
add_test(NAME runs COMMAND demo)
install(TARGETS demo DESTINATION bin)
END
echo 'int part(void) { return 5; }' >s/part.c
printf '#include <iostream>\nextern "C" int part(void);\nint main() { std::cout << part() << std::endl; }\n' >s/demo.cc
cmake -S s -B b -DCMAKE_INSTALL_PREFIX="$PWD/i" | grep -v '(.*s)'
cmake --build b -j2 >/dev/null
(cd b && ctest) | grep 'tests passed'
cmake --install b | sed "s,$PWD,,"
i/bin/demo
