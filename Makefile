# A thin front of CMake and the scripts; every target can be run by hand as written here.
JOBS ?= $(shell nproc)
export GPU4FS_JOBS := $(JOBS)

.PHONY: setup build cuda cuda-whole test demo crash-explore gpu-check fuzz format tidy clean

build: setup-cpu
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target gpu4fs

setup:
	@scripts/setup.sh

.PHONY: setup-cpu
setup-cpu:
	@GPU4FS_SETUP_CUDA=0 scripts/setup.sh

cuda: setup
	cmake --preset cuda
	cmake --build --preset cuda -j $(JOBS) --target gpu4fs

# The service kernel as one program: faster on the GPU, and ptxas takes very long.
cuda-whole: setup
	cmake --preset cuda-whole
	cmake --build --preset cuda-whole -j $(JOBS) --target gpu4fs

test: setup setup-guest
	@scripts/test.sh

# With a GPU the demo runs both engines.
demo: $(if $(wildcard /dev/nvidiactl),cuda,build)
	@scripts/demo.sh

# States in which crashes may leave a pool: N random histories besides the fixed ones, from CRASH_SEED on, a different
# number each time; SEED=number chooses it. The number is printed, and the id of a failure suffices to repeat it.
N ?= 2000
SEED ?= 1
CRASH_SEED := $(if $(filter file,$(origin SEED)),$(shell od -An -N4 -tu4 /dev/urandom | tr -d ' '),$(SEED))
crash-explore: setup-cpu
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target gpu4fs_system_test
	GPU4FS_CRASH_RANDOM=$(N) GPU4FS_CRASH_SEED=$(CRASH_SEED) GPU4FS_CRASH_SECONDS=1000000 build/release/gpu4fs_system_test \
	    --gtest_filter='CrashExplorerTest.*:*/CrashExplorerTest.*'

# The same for pools with redundancy that lose devices at each of those states; takes hours.
.PHONY: write-hole
write-hole: setup-cpu
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target gpu4fs_system_test
	GPU4FS_LOSS_ALL=1 GPU4FS_LOSS_RANDOM=$(N) build/release/gpu4fs_system_test --gtest_filter='WriteHole.*'

# All levels, numbers of devices, stripe lengths, losses and damaged pages.
.PHONY: raid-matrix staged-matrix
raid-matrix: setup-cpu
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target gpu4fs_system_test
	GPU4FS_MATRIX_ALL=1 build/release/gpu4fs_system_test --gtest_filter='RaidMatrix.*'

# The tests of pools on staged devices: their pages pass through a page cache. ACCESS=direct takes media that are not
# mapped. Left out are those that check what only mapped devices have: errors of writes that are known at once, reads of
# data without locks, damage of the medium that is seen behind a valid frame, and repairs that outlive a crash before a
# flush.
STAGED_LEFT_OUT := ^check[.]|packaging|programs|xfstests|tools.compare|^staged|^direct|^emulated|^(base|bench|format|wire|nvme|block)|nth_error
STAGED_LEFT_OUT := $(STAGED_LEFT_OUT)|optimistic_reads|relocation.target_error|warp_pauses|scrub.scrub|raid_matrix
.PHONY: staged-matrix
staged-matrix: setup-cpu
	cmake --preset release
	cmake --build --preset release -j $(JOBS)
	GPU4FS_DEVICE_ACCESS=$(or $(ACCESS),staged) ctest --test-dir build/release -j $(JOBS) --output-on-failure -E '$(STAGED_LEFT_OUT)'

# Every sector outside of pages damaged in turn, and pairs of them.
.PHONY: damage-matrix
damage-matrix: setup-cpu
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target gpu4fs_system_test
	GPU4FS_DAMAGE_ALL=1 build/release/gpu4fs_system_test --gtest_filter='DamageMatrix.*'

# The matrix of levels with the GPU engine, on a machine with a GPU; takes hours. make gpu-check runs a sample.
.PHONY: gpu-raid-matrix
gpu-raid-matrix: setup
	cmake --preset cuda
	cmake --build --preset cuda -j $(JOBS) --target gpu4fs_gpu_raid_matrix_test
	GPU4FS_MATRIX_ALL=1 build/cuda/gpu4fs_gpu_raid_matrix_test

# Worlds of workers, clients, devices and accidents: COUNT of them, from SEED on.
COUNT ?= 2000
.PHONY: simulate
simulate: setup-cpu
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target gpu4fs_system_test
	GPU4FS_SIM_SEED=$(SEED) GPU4FS_SIM_COUNT=$(COUNT) build/release/gpu4fs_system_test --gtest_filter='*EndWell'

# The group generic/quick of xfstests on mounts; XFSTESTS_DIR: a built checkout of the suite. Without it the script says
# how to get one. Takes an hour and needs root. TESTS: other tests, as for the suite's `check`.
.PHONY: xfstests
xfstests: build
	GPU4FS=build/release/gpu4fs tests/xfstests/run.py $(TESTS)

# The NVMe driver on controllers of QEMU; prints how many tests passed.
.PHONY: qemu-check
qemu-check: setup-cpu
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target gpu4fs_nvme_qtest
	GPU4FS_BUILD=build/release tests/nvme/qemu_test.py

# The NVMe driver through VFIO, and drives that pass between it and the kernel's driver, in a guest of QEMU; prints how
# many checks passed.
.PHONY: setup-guest vfio-check
setup-guest:
	@scripts/setup_guest.sh
vfio-check: setup-cpu setup-guest
	cmake --preset release
	cmake --build --preset release -j $(JOBS) --target gpu4fs gpu4fs_nvme_vfio
	GPU4FS_BUILD=build/release tests/nvme/vfio_test.py
	GPU4FS_BUILD=build/release tests/nvme/vfio_pool_test.py

# Wrong expressions in place of right ones; for each of them a test has to fail. ONLY: a regular expression of names.
ONLY ?=
.PHONY: mutants
mutants: setup-cpu
	cmake --preset mutants
	cmake --build --preset mutants -j $(JOBS) --target $(shell tests/mutants/run_mutants.py --targets)
	tests/mutants/run_mutants.py $(if $(ONLY),--only '$(ONLY)')

# Images with changed structures and right checksums: COUNT of them, from SEED on, with AddressSanitizer.
.PHONY: fuzz-images
fuzz-images: setup-cpu
	cmake --preset asan
	cmake --build --preset asan -j $(JOBS) --target gpu4fs_system_test
	GPU4FS_IMAGE_SEED=$(SEED) GPU4FS_IMAGE_COUNT=$(COUNT) build/asan/gpu4fs_system_test --gtest_filter='ChangedImages.*'

# Pictures of the sweep over levels, file sizes and numbers of files; SWEEP: its result, measured here if it is missing.
# And of the NVMe driver over the size of commands, and of the page cache; NVME: its results.
SWEEP ?= build/sweep.json
NVME ?= bench/results/nvme-cuda-h200.json bench/results/nvme-cpu.json
.PHONY: plots
plots: build
	@test -e $(SWEEP) || build/release/gpu4fs bench run --quick --only sweep -o $(SWEEP)
	python3 bench/plots/sweep.py $(SWEEP)
	python3 bench/plots/nvme.py $(NVME) --folder build

# The same of a replay: TRACE, a file of `gpu4fs trace record` or of the layer trace=FILE.
.PHONY: trace-plots
trace-plots: build
	@test -n "$(TRACE)" || { echo "TRACE=FILE is needed"; exit 1; }
	build/release/gpu4fs trace replay $(TRACE) --json build/trace.json
	python3 bench/plots/trace.py build/trace.json

gpu-check: setup
	@scripts/gpu_check.sh

# TIME: seconds for each target.
TIME ?= 60
fuzz:
	@GPU4FS_SETUP_CUDA=0 scripts/setup.sh clang
	@scripts/fuzz.sh $(TIME)

format:
	@GPU4FS_SETUP_CUDA=0 scripts/setup.sh clang-format
	@git ls-files -co --exclude-standard -- '*.hpp' '*.h' '*.cpp' '*.cu' '*.cuh' | \
	    xargs -r clang-format -i

tidy:
	@GPU4FS_SETUP_CUDA=0 scripts/setup.sh clang-tidy
	cmake --preset release
	@git ls-files -co --exclude-standard -- 'src/*.cpp' | \
	    xargs -r -n 1 -P $(JOBS) clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option

# Installs the built files below PREFIX (DESTDIR is put before it). mount(8) finds its helper only in /sbin: for a
# PREFIX other than /usr, docs/manual/install.md says what to link.
PREFIX ?= /usr/local
PRESET ?= $(if $(wildcard build/cuda/gpu4fs),cuda,release)
.PHONY: install
install:
	cmake --build --preset $(PRESET) -j $(JOBS) --target gpu4fs gpu4fs-bench
	cmake --install build/$(PRESET) --prefix $(PREFIX)

# build/package/gpu4fs_VERSION_ARCHITECTURE.deb, with both engines.
.PHONY: package
package:
	@scripts/setup.sh dpkg-dev file
	cmake --preset cuda
	cmake --build --preset cuda -j $(JOBS) --target gpu4fs gpu4fs-bench
	cpack --config build/cuda/CPackConfig.cmake -B build/package

# Installs the package in a fresh Debian root, which needs root and the network, and uses it there.
.PHONY: package-check
package-check: package
	@scripts/setup.sh mmdebstrap
	scripts/check_package.sh build/package/*.deb

clean:
	rm -rf build/release build/debug build/asan build/tsan build/fuzz build/mutants build/cuda build/cuda-whole build/package build/test
