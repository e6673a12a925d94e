# tests/<layer>/*_test.cpp: one gtest program a layer.
# tests/<other folder>/*_test.{cpp,sh,py}: each a test of its own, the compiled ones in one program with everything.
# tests/gpu/*_test.{cu,cpp}: programs with their own main; registered where a GPU is present.
# A sanitizer build registers only compiled tests; they can read GPU4FS_TEST_SCALE (percent) to
# shorten random walks, because instrumented code runs several times slower.
find_package(GTest REQUIRED)

set(GPU4FS_TEST_PREFIX "" CACHE STRING "Put before test names, so that several builds run in one ctest")
set(GPU4FS_SYSTEM_TESTS ".*" CACHE STRING "Regular expression of the system test folders to build")
set(GPU4FS_UNIT_TESTS ".*" CACHE STRING "Regular expression of the layers whose unit tests to build")
set(GPU4FS_TEST_SCALE 100 CACHE STRING "Length of random tests in percent, handed to them in the environment")

# The libraries are tested as they are shipped; the code of the tests need not be fast.
set(GPU4FS_TEST_FLAGS $<$<CONFIG:Release>:-O1>)
if(GPU4FS_SANITIZE STREQUAL "address")
  set(GPU4FS_TEST_FLAGS)  # cmake/options.cmake has -Og for all
endif()

set(gpu4fs_test_environment
  "GPU4FS=${PROJECT_BINARY_DIR}/gpu4fs"
  "GPU4FS_BUILD=${PROJECT_BINARY_DIR}"
  "GPU4FS_SOURCE=${PROJECT_SOURCE_DIR}"
  "GPU4FS_TEST_SCALE=${GPU4FS_TEST_SCALE}"
  "ASAN_OPTIONS=detect_leaks=1:abort_on_error=0"
  "UBSAN_OPTIONS=print_stacktrace=1"
  "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")

# ThreadSanitizer of g++ 12 and 13 cannot map its shadow under strong address randomisation.
set(gpu4fs_test_launcher)
if(GPU4FS_SANITIZE STREQUAL "thread")
  execute_process(COMMAND setarch ${CMAKE_HOST_SYSTEM_PROCESSOR} -R true
    RESULT_VARIABLE setarch_result OUTPUT_QUIET ERROR_QUIET)
  if(setarch_result EQUAL 0)
    set(gpu4fs_test_launcher setarch ${CMAKE_HOST_SYSTEM_PROCESSOR} -R)
  endif()
endif()

function(gpu4fs_register_test name labels)
  add_test(NAME ${GPU4FS_TEST_PREFIX}${name} COMMAND ${gpu4fs_test_launcher} ${ARGN})
  set_tests_properties(${GPU4FS_TEST_PREFIX}${name} PROPERTIES
    ENVIRONMENT "${gpu4fs_test_environment}" LABELS "${labels}" TIMEOUT 600 SKIP_RETURN_CODE 77
    WORKING_DIRECTORY ${PROJECT_BINARY_DIR})
  # Long tests begin first; otherwise they would run alone at the end.
  if(name MATCHES "^(stress.full_pool|crash.explore|model.random_walk)$")
    set_tests_properties(${GPU4FS_TEST_PREFIX}${name} PROPERTIES COST 100)
  elseif(name MATCHES "^(raid|fs|engine|kill.sigkill|fault.rebuild|fault.degraded|crash.shared_rows|crash.write_hole)$"
      OR name MATCHES "^(recovery.log_recovery|growth.accounting|stripes.full_pool|mutants.sample)$")
    set_tests_properties(${GPU4FS_TEST_PREFIX}${name} PROPERTIES COST 30)
  endif()
endfunction()

# Compiled helpers of the tests link nothing: each test links the layers that it tests.
file(GLOB_RECURSE support_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/support/*.cpp)
if(support_sources)
  add_library(gpu4fs_test_support STATIC ${support_sources})
  target_link_libraries(gpu4fs_test_support PRIVATE gpu4fs_warnings)
  target_compile_options(gpu4fs_test_support PRIVATE ${GPU4FS_TEST_FLAGS})
  set(support_scope PUBLIC)
else()
  add_library(gpu4fs_test_support INTERFACE)
  set(support_scope INTERFACE)
endif()
target_include_directories(gpu4fs_test_support ${support_scope} ${PROJECT_SOURCE_DIR}/tests)
target_link_libraries(gpu4fs_test_support ${support_scope} gpu4fs_options GTest::gtest)

# Headers that nearly every test includes are parsed once for each build.
set(gpu4fs_precompiled <gtest/gtest.h> <fmt/format.h> <algorithm> <atomic> <chrono> <cstring> <filesystem> <functional>
  <map> <memory> <mutex> <optional> <random> <set> <stdexcept> <string> <thread> <utility> <vector>
  ${PROJECT_SOURCE_DIR}/src/base/group.hpp)
target_precompile_headers(gpu4fs_test_support PRIVATE ${gpu4fs_precompiled})

# Everything compiled that ctest runs, for builds that need nothing else.
add_custom_target(gpu4fs_tests)

function(gpu4fs_add_test_program target)
  add_executable(${target} ${ARGN})
  add_dependencies(gpu4fs_tests ${target})
  target_compile_options(${target} PRIVATE ${GPU4FS_TEST_FLAGS})
  target_link_libraries(${target} PRIVATE gpu4fs_warnings gpu4fs_test_support
    GTest::gtest_main GTest::gtest)
  # Layers of headers are compiled in their tests. -O0 halves the compile time: it saves eighteen seconds for each of
  # the largest, whose tests then take six seconds longer. It leaves more undefined behaviour for the sanitizer to see.
  # The pool's tests compute for a long time (the tree of a million chunks), so -O0 saves nothing there.
  if(GPU4FS_SANITIZE STREQUAL "address" AND NOT target MATCHES "^gpu4fs_(system|pool)_test$")
    target_compile_options(${target} PRIVATE -O0)
    get_property(first GLOBAL PROPERTY gpu4fs_precompiled_by)
    if(first)
      target_precompile_headers(${target} REUSE_FROM ${first})
    else()
      set_property(GLOBAL PROPERTY gpu4fs_precompiled_by ${target})
      target_precompile_headers(${target} PRIVATE ${gpu4fs_precompiled})
    endif()
  else()
    target_precompile_headers(${target} REUSE_FROM gpu4fs_test_support)
  endif()
  foreach(library IN ITEMS ${GPU4FS_XXHASH_LIBRARY} ${GPU4FS_ISAL_LIBRARY})
    if(library)
      target_link_libraries(${target} PRIVATE ${library})
    endif()
  endforeach()
endfunction()

# They compile the engine's headers with schedule points, so they share no header with other files.
file(GLOB_RECURSE schedule_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/*_schedules_test.cpp)
set_property(SOURCE ${schedule_sources} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
set_property(SOURCE ${schedule_sources} PROPERTY SKIP_UNITY_BUILD_INCLUSION ON)

# The compiled system tests are one program; each file's suites are a test of ctest.
set(gpu4fs_system_sources)
function(gpu4fs_register_system_test name source)
  file(STRINGS ${source} cases REGEX "^(TEST|TEST_F|TEST_P)\\(")
  set(filter)
  foreach(case IN LISTS cases)
    string(REGEX REPLACE "^[A-Z_]+\\(([A-Za-z0-9]+),.*" "\\1" suite "${case}")
    list(APPEND filter "${suite}.*" "*/${suite}.*")
  endforeach()
  if(NOT filter)
    message(FATAL_ERROR "${source} has no tests")
  endif()
  list(REMOVE_DUPLICATES filter)
  list(JOIN filter ":" filter)
  gpu4fs_register_test(${name} system $<TARGET_FILE:gpu4fs_system_test> --gtest_filter=${filter})
  # A sample of `make staged-matrix`.
  if(NOT GPU4FS_SANITIZE AND name MATCHES "^(sim.simulate|recovery.log_recovery|crash.write_order|growth.reshape)$")
    gpu4fs_register_test(staged.${name} system $<TARGET_FILE:gpu4fs_system_test> --gtest_filter=${filter})
    set_tests_properties(${GPU4FS_TEST_PREFIX}staged.${name} PROPERTIES
      ENVIRONMENT "${gpu4fs_test_environment};GPU4FS_DEVICE_ACCESS=staged")
  endif()
  # The same with direct accesses.
  if(NOT GPU4FS_SANITIZE AND name MATCHES
     "^(sim.simulate|recovery.log_recovery|growth.reshape|crash.write_order|trim.trim_crash)$")
    gpu4fs_register_test(direct.${name} system $<TARGET_FILE:gpu4fs_system_test> --gtest_filter=${filter})
    set_tests_properties(${GPU4FS_TEST_PREFIX}direct.${name} PROPERTIES
      ENVIRONMENT "${gpu4fs_test_environment};GPU4FS_DEVICE_ACCESS=direct")
  endif()
  # The same on emulated NVMe drives.
  if(NOT GPU4FS_SANITIZE AND name MATCHES "^(sim.simulate|recovery.log_recovery|growth.reshape|crash.write_order)$")
    gpu4fs_register_test(emulated.${name} system $<TARGET_FILE:gpu4fs_system_test> --gtest_filter=${filter})
    set_tests_properties(${GPU4FS_TEST_PREFIX}emulated.${name} PROPERTIES
      ENVIRONMENT "${gpu4fs_test_environment};GPU4FS_DEVICE_ACCESS=emulated")
  endif()
  # With copies of pages in a second tier of the page cache, which are driven out. Where a stack sees the accesses of
  # devices in memory, as in simulations, their pages have no copies.
  set(tier_accesses)
  if(NOT GPU4FS_SANITIZE AND name MATCHES "^(sim.simulate|crash.write_order)$")
    set(tier_accesses staged direct)
  elseif(NOT GPU4FS_SANITIZE AND name STREQUAL "stress.clients")
    set(tier_accesses mapped staged)
  endif()
  foreach(access IN LISTS tier_accesses)
    gpu4fs_register_test(tier_${access}.${name} system $<TARGET_FILE:gpu4fs_system_test> --gtest_filter=${filter})
    set_tests_properties(${GPU4FS_TEST_PREFIX}tier_${access}.${name} PROPERTIES
      ENVIRONMENT "${gpu4fs_test_environment};GPU4FS_DEVICE_ACCESS=${access};GPU4FS_PAGE_TIER=1048576")
  endforeach()
endfunction()

file(GLOB test_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true
  RELATIVE ${PROJECT_SOURCE_DIR}/tests ${PROJECT_SOURCE_DIR}/tests/*)
foreach(folder IN LISTS test_folders)
  set(path ${PROJECT_SOURCE_DIR}/tests/${folder})
  if(NOT IS_DIRECTORY ${path} OR folder MATCHES "^(support|gpu|trace)$")
    continue()
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${path}/*_test.cpp)
  if(folder IN_LIST GPU4FS_LAYERS)
    if(sources AND folder MATCHES "${GPU4FS_UNIT_TESTS}")
      gpu4fs_add_test_program(gpu4fs_${folder}_test ${sources})
      target_link_libraries(gpu4fs_${folder}_test PRIVATE gpu4fs_${folder})
      if(folder MATCHES "^(raid|space|fs|engine)$")
        # For the layout of a pool in engine memory, which the tests' pools get from the same code (pool/logical_space).
        target_link_libraries(gpu4fs_${folder}_test PRIVATE gpu4fs_pool)
      endif()
      gpu4fs_register_test(${folder} unit $<TARGET_FILE:gpu4fs_${folder}_test>)
    endif()
  elseif(folder MATCHES "${GPU4FS_SYSTEM_TESTS}")
    foreach(source IN LISTS sources)
      cmake_path(GET source STEM name)
      string(REGEX REPLACE "_test$" "" name ${name})
      gpu4fs_register_system_test(${folder}.${name} ${source})
    endforeach()
    list(APPEND gpu4fs_system_sources ${sources})
  endif()
  if(NOT GPU4FS_SANITIZE)
    file(GLOB_RECURSE scripts CONFIGURE_DEPENDS ${path}/*_test.sh ${path}/*_test.py)
    foreach(script IN LISTS scripts)
      cmake_path(GET script STEM name)
      string(REGEX REPLACE "_test$" "" name ${name})
      if(script MATCHES "\\.py$")
        gpu4fs_register_test(${folder}.${name} system python3 ${script})
      else()
        gpu4fs_register_test(${folder}.${name} system bash ${script})
      endif()
    endforeach()
  endif()
endforeach()

# The driver on controllers of QEMU, started by tests/nvme/qemu_test.py.
if(NOT GPU4FS_SANITIZE)
  gpu4fs_add_test_program(gpu4fs_nvme_qtest ${PROJECT_SOURCE_DIR}/tests/nvme/qtest/qtest_main.cpp
    ${PROJECT_SOURCE_DIR}/tests/nvme/qtest/qtest_machine.cpp)
  target_link_libraries(gpu4fs_nvme_qtest PRIVATE gpu4fs_nvme)
  # Runs in the guest of tests/nvme/vfio_test.py.
  gpu4fs_add_test_program(gpu4fs_nvme_vfio ${PROJECT_SOURCE_DIR}/tests/nvme/vfio/vfio_main.cpp)
  target_link_libraries(gpu4fs_nvme_vfio PRIVATE gpu4fs_nvme)
endif()

if(gpu4fs_system_sources)
  gpu4fs_add_test_program(gpu4fs_system_test ${gpu4fs_system_sources})
  # Most of what a unit takes to compile is the same in all of them: the pools of tests/support.
  set_target_properties(gpu4fs_system_test PROPERTIES UNITY_BUILD_BATCH_SIZE 30)
  if(GPU4FS_SANITIZE)
    target_link_libraries(gpu4fs_system_test PRIVATE gpu4fs_client gpu4fs_fsck)
  else()
    target_link_libraries(gpu4fs_system_test PRIVATE gpu4fs_tools gpu4fs_bench)
    # Not of the program itself, whose sources would wait for everything that gpu4fs links.
    add_dependencies(gpu4fs_tests gpu4fs gpu4fs-bench)
  endif()
endif()

# A client in a process of its own, started by the tests of folder processes.
if("processes" MATCHES "${GPU4FS_SYSTEM_TESTS}")
  gpu4fs_add_test_program(gpu4fs_process_client ${PROJECT_SOURCE_DIR}/tests/processes/helper/client_main.cpp)
  target_link_libraries(gpu4fs_process_client PRIVATE gpu4fs_client)
  if(TARGET gpu4fs_system_test)
    add_dependencies(gpu4fs_system_test gpu4fs_process_client)
  endif()
endif()

# The engine with GPU4FS_TRACE, compiled here and with -O0, because no other build has it.
if(NOT GPU4FS_SANITIZE AND NOT GPU4FS_MUTANTS)
  file(GLOB trace_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tests/trace/*_test.cpp)
  gpu4fs_add_test_program(gpu4fs_trace_test ${trace_sources}
    ${PROJECT_SOURCE_DIR}/src/engine/engine_build.cpp ${PROJECT_SOURCE_DIR}/src/engine/engine_cpu.cpp
    ${PROJECT_SOURCE_DIR}/src/engine/engine_host.cpp)
  set_target_properties(gpu4fs_trace_test PROPERTIES UNITY_BUILD OFF DISABLE_PRECOMPILE_HEADERS ON)
  target_compile_definitions(gpu4fs_trace_test PRIVATE GPU4FS_TRACE=1)
  target_compile_options(gpu4fs_trace_test PRIVATE -O0)
  target_link_libraries(gpu4fs_trace_test PRIVATE gpu4fs_fs gpu4fs_ring gpu4fs_pool)
  gpu4fs_register_test(trace unit $<TARGET_FILE:gpu4fs_trace_test>)
endif()

# A few mutants in each run, different ones each time; make mutants runs all (tests/mutants).
set(gpu4fs_run_mutants python3 ${PROJECT_SOURCE_DIR}/tests/mutants/run_mutants.py)
if(GPU4FS_MUTANTS)
  gpu4fs_register_test(mutants.sample system ${gpu4fs_run_mutants} --build ${PROJECT_BINARY_DIR} --sample 12 --limit 8)
elseif(NOT GPU4FS_SANITIZE)
  gpu4fs_register_test(check.mutants source ${gpu4fs_run_mutants} --check-list)
  gpu4fs_register_test(check.mutants.canary source ${gpu4fs_run_mutants} --self-test)
  gpu4fs_register_test(check.mutants.absent source ${gpu4fs_run_mutants} --absent-from $<TARGET_FILE:gpu4fs>)
endif()

if(NOT GPU4FS_SANITIZE)
  foreach(check IN ITEMS docs layers measurements style)
    gpu4fs_register_test(check.${check} source
      python3 ${PROJECT_SOURCE_DIR}/scripts/check_${check}.py)
    gpu4fs_register_test(check.${check}.canary source
      python3 ${PROJECT_SOURCE_DIR}/scripts/check_${check}.py --self-test)
  endforeach()
endif()

if(GPU4FS_CUDA)
  set(gpu4fs_check_sass python3 ${PROJECT_SOURCE_DIR}/scripts/check_sass.py)
  gpu4fs_register_test(check.sass system ${gpu4fs_check_sass} ${GPU4FS_CUOBJDUMP} $<TARGET_FILE:gpu4fs>)
  gpu4fs_register_test(check.sass.canary source ${gpu4fs_check_sass} --self-test)
  file(GLOB gpu_sources CONFIGURE_DEPENDS
    ${PROJECT_SOURCE_DIR}/tests/gpu/*_test.cu ${PROJECT_SOURCE_DIR}/tests/gpu/*_test.cpp)
  foreach(source IN LISTS gpu_sources)
    cmake_path(GET source STEM name)
    gpu4fs_add_cuda_program(gpu4fs_gpu_${name} ${source})
    target_link_libraries(gpu4fs_gpu_${name} PRIVATE gpu4fs_nvme GTest::gtest)
    if(name STREQUAL "nvme_drive_test")
      target_link_libraries(gpu4fs_gpu_${name} PRIVATE gpu4fs_bench)
    endif()
    if(EXISTS /dev/nvidiactl)
      gpu4fs_register_test(gpu.${name} gpu $<TARGET_FILE:gpu4fs_gpu_${name}>)
    endif()
  endforeach()
  if(gpu_sources AND NOT EXISTS /dev/nvidiactl)
    message(STATUS "No GPU here: tests/gpu is compiled, and run by 'make gpu-check' where there is one")
  endif()
endif()
