#!/usr/bin/env python3
# timeout: 120
"""tests/gpu.sh where there is no GPU: what it refuses, and its tables, from programs that only print what ours do.

    test_gpu_script.py <folder of the programs>
"""
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from runs import check, expect, program, root

SCRIPT = root / "tests/gpu.sh"

# nanotron_bench: the measured steps of input/llama_30m.deck, as it prints and writes them.
BENCH = r"""#!/usr/bin/env bash
while [ $# -gt 0 ]; do
  case "$1" in
    --json) json="$2" ;;
    --deck) [ -f "$2" ] || { echo "error: no deck $2"; exit 78; } ;;
    --machine) : >"$2"; exit ;;
  esac
  shift
done
[ -z "${FAKE_SAMPLED:-}" ] || until [ -s "${json%.json}.gpu" ]; do sleep 0.05; done
cp "$(dirname "$0")/bench.json" "$json"
echo 'Where a step'"'"'s time goes, bf16 on rank 0'
echo '  region          calls/step   ms inclusive   ms exclusive   share %'
echo '  gemm                 216.0         300.00         300.00      60.0'
echo '  load tokens            1.0         150.00         150.00      30.0'
for i in 1 2 3 4 5 6 7 8 9 10; do echo "  small_$i  2.0  $i.00  $i.00  1.0"; done
echo
"""
SHARED = {"deck": "&data\n  sequence_length     = 512\n  global_batch_size   = 4\n/\n", "step": [
    {"ceiling_text": "800000.0 (1.0 - 2.0)", "ms_text": "10.0 (9.0 - 11.0)", "planned_mib": 61834.3, "tokens_per_second": 204800.0}],
    "step_samples": [{"gflops": [400000.0, 1.0], "seconds": [0.01, 0.011]}]}
# nanotron_gpu_tests of three suites, of which those with these words end as after an illegal access.
TESTS = r"""#!/usr/bin/env bash
case "$*" in
  *--gtest_list_tests*) printf 'Running main()\nEmbedding/0.  # TypeParam = double\n  Forward\nCrossEntropy.\n  Forward\n'; exit ;;
esac
echo "$*" >>"$(dirname "$0")/asked"
[ -z "${FAKE_HANG:-}" ] || [[ "$*" != *$FAKE_HANG* ]] || sleep 60
if [ -n "${FAKE_FAILURE:-}" ] && [[ "$*" =~ $FAKE_FAILURE ]]; then exit 3; fi
echo "[  PASSED  ] ${FAKE_TESTS:-7} tests."
"""
HPC = r"""#!/usr/bin/env bash
case "$*" in
  *--build-info*) {program} --build-info | sed "s/^cuda: .*/${FAKE_API:-cuda: 13.0}/"
    printf 'nccl: %s\ncublas: 13.1.0\ncudnn: %s\n' "${FAKE_NCCL:-2.28.9}" "${FAKE_CUDNN:-9.28.1}" ;;
  *--plan*) exec {program} "$@" ;;
  *stop_after*) exit 75 ;;
  *parallel.tp=2*) echo 'step      20/20  loss '"${FAKE_LOSS:-3.1234}  grad norm 1" ;;
  *) echo 'step      20/20  loss 3.1234  grad norm 1' ;;
esac
"""
SMI = r"""#!/usr/bin/env bash
case "$*" in
  *query-gpu=memory.total*) echo "${FAKE_MEMORY:-81559}" ;;
  *utilization.gpu*) printf '%s\n' '3, 345, 71.00, 600' '99, 1800, 690.00, 61000' '100, 1700, 700.00, 70123'; exec sleep 60 ;;
  *) echo 'NVIDIA H100 80GB HBM3, 81559 MiB, 580.1, 1980 MHz, 700.00 W' ;;
esac
"""
# As rocm-smi writes them for one of several GPUs.
AMD_SMI = r"""#!/usr/bin/env bash
case "$*" in
  "--device 3 --json --showuse --showclocks --showpower --showmeminfo vram")
    printf '%s' '{"card3": {"fclk clock speed:": "(1300Mhz)", "fclk clock level:": "0", "sclk clock speed:": "(1800Mhz)", ' \
      '"sclk clock level:": "1", "Current Socket Graphics Package Power (W)": "690.0", "GPU use (%)": "99", ' \
      '"VRAM Total Memory (B)": "206141652992", "VRAM Total Used Memory (B)": "63963136000"}}' ;;
  "--device 3 --json --showmeminfo vram")
    echo '{"card3": {"VRAM Total Memory (B)": "'"${FAKE_BYTES:-206141652992}"'", "VRAM Total Used Memory (B)": "63963136000"}}' ;;
  *) printf 'device,Card Series,Driver version\ncard3,AMD Instinct MI300X,6.3\n' ;;
esac
"""
SANITIZER = r"""#!/usr/bin/env bash
echo "${CUDA_MODULE_LOADING:-} $*" >>"$(dirname "$0")/asked"
while [ "${1#--}" != "$1" ]; do shift; [ -x "$1" ] || shift; done
exec "$@"
"""
NSYS = r"""#!/usr/bin/env bash
if [ "$1" = profile ]; then
  while [ "${1#*nanotron_bench}" = "$1" ]; do shift; done
  exec "$@"
fi
echo 'Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name'
echo '75.0,3000000,3,1,1,1,1,1,"void gemm<float, 2>(float*, int)"'
echo '25.0,1000000,1,1,1,1,1,1,norm'
"""
NCU = r"""#!/usr/bin/env bash
while [ "${1#*nanotron_bench}" = "$1" ]; do [ "$1" != --log-file ] || log="$2"; shift; done
cat >"$log" <<'CSV'
==PROF== Connected
"ID","Process ID","Kernel Name","gpu__time_duration.sum"
"","","","ns"
"0","7","void gemm<float, 2>(float*, int)","2,000"
"1","7","norm","1,000"
"2","7","void gemm<float, 2>(float*, int)","1,000"
CSV
exec "$@"
"""


def script(*arguments, **options):
    return expect("bash", SCRIPT, *arguments, **options)


def make(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


def plain_path(work):
    """PATH without a folder that has nvidia-smi."""
    return ":".join(folder for folder in os.environ["PATH"].split(":") if not (Path(folder) / "nvidia-smi").exists())


def correctness(programs, tools, here, environment):
    asked = programs / "asked"
    said = script("correctness", *here, says=["| commit |", "cuDNN 9.28.1", "NCCL 2.28.9, cuBLAS 13.1.0", "driver", "NANOTRON_SEED=",
                                              "| NCCL, one rank | 1 | passed: 7 tests |", "not run: NCCL 2.30 or newer"], **environment)
    check(said.count("| passed") == 22 and "FAILED" not in said, "every check is a row, and passes", said)
    rows = [said.index(words) for words in ("| attention in bf16", "| kernels: GEMM", "| golden runs", "| nanotron_bench --machine",
                                            "| nanotron_hpc, stopped", "| NCCL, one rank", "| grids against", "| compute-sanitizer")]
    check(rows == sorted(rows), "what others build on comes first", said)
    check("Zero" in asked.read_text(), "the grids are asked for")
    sanitized = (tools / "asked").read_text().splitlines()
    check(len(sanitized) == 3 and all(line.startswith("LAZY --tool") and "--report-api-errors no" in line for line in sanitized),
          "the sanitizer loads what it needs, and counts no answers", str(sanitized))

    # After a failure each suite runs alone, also where the row hangs; others do not.
    asked.unlink()
    said = script("correctness", *here, code=1, says=["| kernels: embedding, cross-entropy | 1 | FAILED, exit code 3 |",
                                                      "| alone: Embedding/0 | 1 | FAILED, exit code 3 |",
                                                      "| alone: CrossEntropy | 1 | passed: 7 tests |"], FAKE_FAILURE="=Embedding", **environment)
    check(said.count("FAILED") == 2 and "=Embedding/0.*" in asked.read_text(), "one suite failed", said)
    script("correctness", *here, "--minutes", "0", code=1,
           says=["not run: 0 minutes are over", "MISSING: cuDNN: libcudnn.so.9 was not found"],
           FAKE_CUDNN="libcudnn.so.9 was not found", **environment)

    # Ranks on one GPU over NCCL, whose losses are those of one rank.
    said = script("correctness", *here, code=1, FAKE_NCCL="2.30.7", FAKE_LOSS="3.1334", **environment,
                  says=["| NCCL, ranks that share the GPU: dp=2 pp=2 | 4 | passed", "| loss of tp=2 | 2 | FAILED: 3.1334, one rank has 3.1234 |",
                        "| loss of tp=2 cp=2 | 4 | FAILED"])
    check(said.count("| NCCL, ranks that share the GPU") == 6 and said.count("FAILED") == 2, "six grids, two with another loss", said)


def amd(tools, here, deck, environment):
    """The GPU of an AMD build is asked by rocm-smi; kernels for NVIDIA's tensor cores are not measured."""
    make(tools, "rocm-smi", AMD_SMI)
    of_amd = environment | {"FAKE_API": r"cuda: none\nhip: 6.3, for gfx942", "FAKE_SAMPLED": "1", "ROCR_VISIBLE_DEVICES": "3"}
    script("speed", *here, "--deck", deck, "--python", "false", code=1, says=[
        "MI300X", "rocm-smi's samples",
        "| llama_30m | nanotron_bench, bf16 | 10.0 (9.0 - 11.0) | 204800 | 400 | 50.0 | 30.6 | 1800 | 690 | 61000 | 61834 |"], **of_amd)
    script("speed", *here, "--python", "false", code=1, says=["| llama_7b | nanotron_bench, bf16 |"], **of_amd)
    script("speed", *here, code=64, says=["none of the decks fits 8192 MiB"], FAKE_BYTES="8589934592", **of_amd)
    script("speed", *here, code=64, says=["rocm-smi does not say the memory"], FAKE_BYTES="none", **of_amd)
    said = script("experts", *here, says=["expert_gemms = 'library' | 10.0"], **of_amd)
    check("grouped" not in said, "no grouped GEMMs", said)


def a_row_has_its_own_limit(programs, work):
    """A row that hangs is ended, its suites run alone, and the next row runs."""
    parts = "; ".join(f"source {root}/tests/gpu/{part}.sh" for part in ("report", "correctness"))
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", f"""logs={work} report={work}/rows.md deadline=60 slower=1 minutes=1
        tests={programs}/nanotron_gpu_tests; {parts}; check_tests 1 norms 1 'RmsNorm*:Embedding*'; check_tests 1 next 1 'Gemm*'
        FAKE_TESTS=0 check_tests 1 none 1 'Gone*'"""],
        text=True, timeout=60, capture_output=True, env=os.environ | {"FAKE_HANG": "=RmsNorm"})
    for words in ("| norms | 1 | FAILED: not done after", "| alone: Embedding/0 | 1 | passed", "| next | 1 | passed: 7 tests |",
                  "| none | 1 | FAILED: no test of that name |"):
        check(words in done.stdout, f"a row that hangs, and one without tests: '{words}'", done.stdout + done.stderr)


def an_archive_has_the_logs(out):
    archive = sorted(out.glob("*_correctness.tar.gz"))[0]
    with tarfile.open(archive) as files:
        names = {Path(name).name for name in files.getnames()}
    check({"report.md", "build_info.log", "001_kernels__GEMM.log"} <= names, "all logs are in one archive", str(names))
    check(archive.with_name(archive.name.replace(".tar.gz", ".md")).exists(), "the table is beside it")
    check(not [path for path in out.iterdir() if path.is_dir()], "nothing else is left")


def main(work):
    programs, tools, broken = work / "bin", work / "tools", work / "broken"
    for folder in (programs, tools, broken):
        folder.mkdir()
    deck = root / "input/llama_30m.deck"

    script(code=64, says=["say what"])
    script("--help", says=["correctness", "--bundle <folder>"])
    script("correctness", "--fast", code=64, says=["unknown option '--fast'"])
    script("speed", "profile", code=64, says=["two commands"])
    script("speed", "--deck", code=64, says=["--deck needs a value"])
    script("speed", "--deck", work / "none.deck", code=64, says=["no deck"])
    script("speed", "--bin", programs, code=64, says=["no program", "nanotron_gpu_tests"])
    if shutil.which("orterun"):
        script("--bundle", work, code=1, says=["is there already"])
    else:
        script("--bundle", work / "new", code=1, says=["orterun was not found"])

    make(programs, "nanotron_hpc", HPC.replace("{program}", program))
    make(tools, "nvidia-smi", SMI)
    make(programs, "nanotron_bench", BENCH)
    make(programs, "nanotron_generate", "#!/usr/bin/env bash\n")
    make(programs, "nanotron_gpu_tests", TESTS)
    make(programs, "mpiexec", '#!/usr/bin/env bash\nshift 2\nexec "$@"\n')
    (programs / "bench.json").write_text(json.dumps(SHARED, indent=2))
    here = ("--bin", programs, "--out", work / "out")
    for tool in ("nsys", "ncu"):  # also where the machine has them
        make(broken, tool, "#!/usr/bin/env bash\nexit 1\n")
    bare = {"CUDA_HOME": str(work), "PATH": f"{broken}:{os.environ['PATH']}"}

    # Without nvidia-smi, also where the machine has it: no deck can be chosen.
    script("speed", *here, code=64, says=["name one with --deck"], **bare | {"PATH": f"{broken}:{plain_path(work)}"})

    make(tools, "compute-sanitizer", SANITIZER)
    with_tools = bare | {"PATH": f"{tools}:{broken}:{os.environ['PATH']}"}
    correctness(programs, tools, here, with_tools)
    a_row_has_its_own_limit(programs, work)
    an_archive_has_the_logs(work / "out")

    # 204,800 tokens/s of 4e5 * 0.01 GFLOP / 2,048 tokens; clocks and power of the busy samples, memory of all.
    row = "| llama_30m | nanotron_bench, bf16 | 10.0 (9.0 - 11.0) | 204800 | 400 | 50.0 | 40.4 | 1750 | 695 | 70123 | 61834 |"
    script("speed", *here, "--deck", deck, "--python", "false", code=1,
           says=[row, "reproducible = 'run' | 10.0", "nanotron_bench, fp8 | 10.0", "PyTorch | FAILED: exit code 1"], **with_tools)
    make(tools, "torch", '#!/usr/bin/env bash\ncp "$(dirname "$0")/torch.json" "${@: -1}"\n')
    (tools / "torch.json").write_text(json.dumps(
        {"program": "PyTorch 9, eager", "ms_text": "20.0 (1.0 - 2.0)", "tokens_per_second": 102400.0}, indent=2))
    torch = ("--python", tools / "torch")
    script("speed", *here, "--deck", deck, *torch, says=["| llama_30m | PyTorch | 20.0 (1.0 - 2.0) | 102400 | 200 | 25.0 |"], **with_tools)
    script("speed", *here, "--deck", deck, "--minutes", "0", code=1, says=["FAILED: the time was over"], **with_tools)

    # The largest deck that the GPU holds.
    script("speed", *here, *torch, says=["| llama3_3b | nanotron_bench, bf16 |", "tests/gpu.sh --deck input/qwen2_1b5.deck speed"], **with_tools)
    script("speed", *here, *torch, says=["| llama_7b |", "--deck input/llama3_3b.deck"], FAKE_MEMORY="143771", **with_tools)
    script("speed", *here, *torch, code=64, says=["none of the decks fits 24576 MiB"], FAKE_MEMORY="24576", **with_tools)

    script("experts", *here, says=["expert_gemms = 'library' | 10.0", "expert_gemms = 'grouped' | 10.0"], **with_tools)

    amd(tools, here, deck, with_tools)

    by_timers = bare | {"PATH": f"{broken}:{os.environ['PATH']}"}
    said = script("profile", *here, "--deck", deck, says=["the program's timers", "| `load tokens` | 1 | 150.000 | 30.0 |"], **by_timers)
    check("small_3`" in said and "small_2`" not in said, "ten rows", said)
    make(tools, "ncu", NCU)
    script("profile", *here, "--deck", deck, says=["| by | ncu", "| `void gemm<float, 2>(float*, int)` | 2 | 0.003 | 75.0 |"], **with_tools)
    make(tools, "nsys", NSYS)
    script("profile", *here, "--deck", deck, says=["| by | nsys", "| `void gemm<float, 2>(float*, int)` | 3 | 3.000 | 75.0 |"], **with_tools)


with tempfile.TemporaryDirectory(prefix="nanotron_gpu_") as name:
    main(Path(name))
