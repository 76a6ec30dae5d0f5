#!/usr/bin/env python3
# timeout: 120
"""tests/gpu.sh where there is no GPU: what it refuses, and its tables, from programs that only print what ours do.

    test_gpu_script.py <folder of the programs>
"""
import json
import os
import subprocess
import tempfile
from pathlib import Path

from runs import check, program, root

SCRIPT = root / "tests/gpu.sh"

# nanotron_bench: the measured steps of input/llama_30m.deck, as it prints and writes them.
BENCH = r"""#!/usr/bin/env bash
while [ $# -gt 0 ]; do [ "$1" != --json ] || json="$2"; shift; done
cp "$(dirname "$0")/bench.json" "$json"
echo 'Where a step'"'"'s time goes, bf16 on rank 0'
echo '  region          calls/step   ms inclusive   ms exclusive   share %'
echo '  gemm                 216.0         300.00         300.00      60.0'
echo '  load tokens            1.0         150.00         150.00      30.0'
for i in 1 2 3 4 5 6 7 8 9 10; do echo "  small_$i  2.0  $i.00  $i.00  1.0"; done
echo
"""
SHARED = {"deck": "&data\n  sequence_length     = 512\n  global_batch_size   = 4\n/\n", "step": [
    {"ceiling_text": "800000.0 (1.0 - 2.0)", "ms_text": "10.0 (9.0 - 11.0)", "tokens_per_second": 204800.0}],
    "step_samples": [{"gflops": [400000.0, 1.0], "seconds": [0.01, 0.011]}]}
TESTS = r"""#!/usr/bin/env bash
echo "$*" >>"$(dirname "$0")/asked"
echo '[  PASSED  ] 7 tests.'
exit "${FAKE_FAILURE:-0}"
"""
HPC = r"""#!/usr/bin/env bash
case "$*" in
  *--build-info*) exec {program} --build-info ;;
  *stop_after*) exit 75 ;;
esac
"""
SANITIZER = r"""#!/usr/bin/env bash
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


def script(*arguments, code=0, says=(), **environment):
    done = subprocess.run(["bash", str(SCRIPT), *map(str, arguments)], text=True, timeout=60, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | environment)
    what = " ".join(map(str, arguments))
    check(done.returncode == code, f"'gpu.sh {what}' gives {code}, not {done.returncode}", done.stdout)
    for words in says:
        check(words in done.stdout, f"'gpu.sh {what}' says '{words}'", done.stdout)
    return done.stdout


def make(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)


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
    script("--bundle", work, code=1, says=["is there already"])

    make(programs, "nanotron_hpc", HPC.replace("{program}", program))
    make(programs, "nanotron_bench", BENCH)
    make(programs, "nanotron_generate", "#!/usr/bin/env bash\n")
    make(programs, "nanotron_gpu_tests", TESTS)
    make(programs, "mpiexec", '#!/usr/bin/env bash\nshift 2\nexec "$@"\n')
    (programs / "bench.json").write_text(json.dumps(SHARED, indent=2))
    here = ("--bin", programs, "--out", work / "out")
    for tool in ("nsys", "ncu"):  # also where the machine has them
        make(broken, tool, "#!/usr/bin/env bash\nexit 1\n")
    bare = {"CUDA_HOME": str(work), "PATH": f"{broken}:{os.environ['PATH']}"}

    make(tools, "compute-sanitizer", SANITIZER)
    with_tools = bare | {"PATH": f"{tools}:{broken}:{os.environ['PATH']}"}
    said = script("correctness", *here, says=["| commit |", "NANOTRON_SEED=", "| NCCL | 1 | passed: 7 tests |", "racecheck"],
                  **with_tools)
    check(said.count("| passed") == 14 and "FAILED" not in said, "every check is a row, and passes", said)
    check("Zero" in (programs / "asked").read_text(), "the grids are asked for")
    check(list((work / "out").glob("*_correctness.md")), "the table is written")
    said = script("correctness", *here, code=1, says=["| FAILED, exit code 3 |"], FAKE_FAILURE="3", **with_tools)
    script("correctness", *here, "--minutes", "0", code=1, says=["not run: 0 minutes are over"], **bare)

    # 204,800 tokens/s of 4e5 * 0.01 GFLOP / 2,048 tokens
    script("speed", *here, "--deck", deck, "--python", "false", code=1,
           says=["| llama_30m | nanotron_bench, bf16 | 10.0 (9.0 - 11.0) | 204800 | 400 | 50.0 |", "nanotron_bench, fp8 | 10.0",
                 "PyTorch | not measured"], **bare)
    make(tools, "torch", '#!/usr/bin/env bash\ncp "$(dirname "$0")/torch.json" "${@: -1}"\n')
    (tools / "torch.json").write_text(json.dumps(
        {"program": "PyTorch 9, eager", "ms_text": "20.0 (1.0 - 2.0)", "tokens_per_second": 102400.0}, indent=2))
    script("speed", *here, "--deck", deck, "--python", tools / "torch",
           says=["| llama_30m | PyTorch 9, eager | 20.0 (1.0 - 2.0) | 102400 | 200 | 25.0 |"], **bare)

    said = script("speed", *here, "--python", tools / "torch", says=["expert_gemms = 'grouped' | 10.0"], **bare)
    check(said.count("| mixtral_90m, wider |") == 2, "experts with both kinds of GEMMs", said)

    said = script("profile", *here, "--deck", deck, says=["the program's timers", "| `load tokens` | 1 | 150.000 | 30.0 |"], **bare)
    check("small_3`" in said and "small_2`" not in said, "ten rows", said)
    make(tools, "ncu", NCU)
    script("profile", *here, "--deck", deck, says=["| by | ncu", "| `void gemm<float, 2>(float*, int)` | 2 | 0.003 | 75.0 |"], **with_tools)
    make(tools, "nsys", NSYS)
    script("profile", *here, "--deck", deck, says=["| by | nsys", "| `void gemm<float, 2>(float*, int)` | 3 | 3.000 | 75.0 |"], **with_tools)


with tempfile.TemporaryDirectory(prefix="nanotron_gpu_") as name:
    main(Path(name))
