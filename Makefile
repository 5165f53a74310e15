# The commands of the README. Each installs what is missing, builds, and does its one thing.
BUILD ?= build
JOBS  ?= $(shell nproc)

.PHONY: run test build cuda nvcc clean
run: build
	@tools/demo.sh $(BUILD)/kdtree

build: $(BUILD)/build.ninja
	@cmake --build $(BUILD) -j $(JOBS) --target kdtree

cuda: nvcc $(BUILD)/cuda/build.ninja
	@cmake --build $(BUILD)/cuda -j $(JOBS) --target kdtree gpu_tests attention_choice_test

# Tests share the cores: an OpenMP thread that spins where it waits holds up the others.
test: $(BUILD)/build.ninja $(BUILD)/.venv/installed
	@cmake --build $(BUILD) -j $(JOBS)
	@OMP_WAIT_POLICY=passive ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS)
	@KDT_BUILD=$(BUILD) OMP_WAIT_POLICY=passive PYTHONDONTWRITEBYTECODE=1 \
	  $(BUILD)/.venv/bin/python -m pytest -q -p no:cacheprovider python/tests

# Configures once; from then on ninja sees for itself when CMake must run again.
$(BUILD)/build.ninja: | $(BUILD)/.deps
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release --log-level=WARNING

$(BUILD)/cuda/build.ninja: | nvcc $(BUILD)/.deps
	@cmake -S . -B $(BUILD)/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release -DKDT_CUDA=ON --log-level=WARNING

nvcc:
	@command -v $${CUDACXX:-nvcc} >/dev/null || \
	  { echo "error: make cuda needs nvcc (CUDA 13) on PATH or in CUDACXX" >&2; exit 1; }

$(BUILD)/.deps: tools/install_deps.sh
	@tools/install_deps.sh
	@mkdir -p $(BUILD) && touch $@

$(BUILD)/.venv/installed: python/requirements.txt | $(BUILD)/.deps
	@tools/make_venv.sh $(BUILD)/.venv
	@touch $@

clean:
	rm -rf $(BUILD)
