# tests/fuzz/<name>_fuzz.cpp: gpu4fs_fuzz_<name>, see tests/fuzz/fuzz_target.hpp.
# GPU4FS_SANITIZE=fuzzer makes libFuzzer programs, GPU4FS_SANITIZE=address tests with a driver of our own.
set(gpu4fs_fuzz_libfuzzer OFF)
if(GPU4FS_SANITIZE STREQUAL "fuzzer")
  set(gpu4fs_fuzz_libfuzzer ON)
elseif(NOT GPU4FS_SANITIZE STREQUAL "address" OR NOT "fuzz" MATCHES "${GPU4FS_SYSTEM_TESTS}")
  return()
endif()

# Mutations that a test runs beyond its corpus.
set(gpu4fs_fuzz_runs 3000)
set(gpu4fs_fuzz_runs_directory 1500)
set(gpu4fs_fuzz_runs_file_map 1500)
set(gpu4fs_fuzz_runs_descriptor 400)
set(gpu4fs_fuzz_runs_image 200)
set(gpu4fs_fuzz_runs_log 300)
set(gpu4fs_fuzz_runs_log_rows 100)

add_custom_target(gpu4fs_fuzz_programs)

set(gpu4fs_fuzz_entry ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_entry.cpp)
if(NOT gpu4fs_fuzz_libfuzzer)
  list(APPEND gpu4fs_fuzz_entry ${PROJECT_SOURCE_DIR}/tests/fuzz/fuzz_driver.cpp)
endif()
add_library(gpu4fs_fuzz_entry OBJECT ${gpu4fs_fuzz_entry})
target_link_libraries(gpu4fs_fuzz_entry PRIVATE gpu4fs_warnings gpu4fs_test_support)

function(gpu4fs_add_fuzz_program target source)
  add_executable(${target} ${source} $<TARGET_OBJECTS:gpu4fs_fuzz_entry>)
  target_link_libraries(${target} PRIVATE gpu4fs_warnings gpu4fs_test_support gpu4fs_client gpu4fs_fsck)
  if(gpu4fs_fuzz_libfuzzer)
    target_link_options(${target} PRIVATE -fsanitize=fuzzer)
  else()
    target_compile_options(${target} PRIVATE ${GPU4FS_TEST_FLAGS})
    target_precompile_headers(${target} REUSE_FROM gpu4fs_test_support)
  endif()
  add_dependencies(gpu4fs_fuzz_programs ${target})
  add_dependencies(gpu4fs_tests ${target})
endfunction()

file(GLOB fuzz_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/fuzz/*_fuzz.cpp)
foreach(source IN LISTS fuzz_sources)
  cmake_path(GET source STEM name)
  string(REGEX REPLACE "_fuzz$" "" name ${name})
  gpu4fs_add_fuzz_program(gpu4fs_fuzz_${name} ${source})
  if(gpu4fs_fuzz_libfuzzer)
    continue()
  endif()
  set(runs ${gpu4fs_fuzz_runs})
  if(DEFINED gpu4fs_fuzz_runs_${name})
    set(runs ${gpu4fs_fuzz_runs_${name}})
  endif()
  gpu4fs_register_test(fuzz.${name} system $<TARGET_FILE:gpu4fs_fuzz_${name}>
    --corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/${name} --runs ${runs})
endforeach()

# A read after the end of a page that the driver has to find; otherwise it finds nothing at all. There may be a redzone
# or freed memory.
if(NOT gpu4fs_fuzz_libfuzzer)
  set(folder ${PROJECT_BINARY_DIR}/fuzz_canary)  # for the input that fails
  file(MAKE_DIRECTORY ${folder})
  gpu4fs_register_test(fuzz.canary system $<TARGET_FILE:gpu4fs_fuzz_directory>
    --corpus ${PROJECT_SOURCE_DIR}/tests/fuzz/corpus/directory --runs 1500)
  set_tests_properties(${GPU4FS_TEST_PREFIX}fuzz.canary PROPERTIES
    ENVIRONMENT "${gpu4fs_test_environment};GPU4FS_FUZZ_CANARY=1" WORKING_DIRECTORY ${folder}
    PASS_REGULAR_EXPRESSION "AddressSanitizer: heap-[a-z-]+ on address.*fuzz directory: [0-9]+ inputs, 1 failures")
endif()
