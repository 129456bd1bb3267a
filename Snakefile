"""The map: experiments -> claims -> tables, numbers, figures -> paper/paper.pdf. Plain `snakemake` builds it all.

A job runs again when its key changes (the hash of all that its output follows from: the name of an empty file in
results/.keys that it takes as input) or a result does. What was built from them is `ancient`: an edit by hand is not
built upon, `fivedim verify` names it. A job's empty file in results/.done tells those after it that it ran: Snakemake
runs no job for an ancient input, not even for a new one. Parameters look at the output, so that Snakemake compares none.
"""

from fivedim.evidence.pipeline import plan

FIGURES = {  # figure: the experiments whose rows it draws
    "ledger": ["model_state", "model_state_rehearsed", "state_against_checkpoint"],
    "ring_steps": ["ring_schedule"],
    "volumes": ["collective_volumes"],
    "reported_curves": ["alpha_beta_fit"],
    "time_against_size": ["ring_times"],
    "plateaus": ["link_models", "plateaus_emulated"],
    "bucket_curve": ["bucket_sweep_predicted", "bucket_sweep_emulated"],
    "timeline": ["bucket_sweep_emulated"],
    "waterfall": ["exposed_time_predicted"],
    "fsdp_timeline": ["fsdp_trace"],
    "fsdp_memory": ["fsdp_memory_rehearsed"],
    "step_times": ["zero_times_predicted", "fsdp_times_predicted"],
    "three_ledgers": ["zero_ledger"],
    "deepspeed_ledger": ["libraries"],
}
SCALE = config.setdefault("scale", "laptop")
EXECUTOR = config.setdefault("executor", "local")
PLAN = plan(SCALE, FIGURES)
RESULTS = f"results/{SCALE}"
ROWS = expand(f"{RESULTS}/{{experiment}}.{{kind}}", experiment=PLAN.specs, kind=["csv", "json"])
DONE = f"results/.done/{SCALE}"
VERDICTS = [f"{RESULTS}/claims.csv", f"{RESULTS}/claims_parts.csv"]
PDFS, PNGS = expand("figures/{name}.pdf", name=FIGURES), expand("figures/{name}.png", name=FIGURES)
EVIDENCE = ["configs/claims.yaml", "code/fivedim/evidence/*.py"]
SIZES = ["configs/reported/sizes.csv", "code/fivedim/**/*.py"]  # what the table of code sizes counts
TEXT = ["paper/*.tex", "paper/sections/*.tex", "paper/references.bib", "paper/latexmkrc"]
DRAWN = ["figures/*.py", "code/fivedim/evidence/style.py", "code/fivedim/ledger/*.py"]
RUNS = {name: PLAN.run(name) for name in PLAN.specs}  # key files, there before Snakemake looks for what exists
DRAWINGS = {name: PLAN.job(f"figure_{name}", FIGURES[name], *DRAWN) for name in FIGURES}


container: "docker://python:3.11"  # for `--sdm apptainer`; without it the active environment is used


wildcard_constraints:
    experiment="|".join(PLAN.specs),
    name="|".join(FIGURES),


rule all:
    default_target: True
    input:
        "paper/paper.pdf",
        f"{RESULTS}/manifest.json",


rule experiment:
    input:
        key=lambda wildcards: ancient(RUNS[wildcards.experiment]),
    output:
        csv=f"{RESULTS}/{{experiment}}.csv",
        json=f"{RESULTS}/{{experiment}}.json",
    log:
        f"{RESULTS}/log/{{experiment}}.txt",
    threads: 1
    resources:
        slurm_jobs=1,
        executor=EXECUTOR,  # where a job runs is no parameter: changing it re-runs nothing
        machine=lambda wildcards: 100 if PLAN.specs[wildcards.experiment].timing else 1,  # 100: alone
    params:
        title=lambda wildcards, output: PLAN.titles[wildcards.experiment],
        scale=lambda wildcards, output: SCALE,
    message:
        "{wildcards.experiment}: {params.title}"
    shell:
        "fivedim run {wildcards.experiment} --scale {params.scale} --executor {resources.executor} 2>&1 | tee -i {log}"


rule claims:
    input:
        ROWS,
        key=ancient(PLAN.job("claims", PLAN.specs, *EVIDENCE)),
    output:
        report(VERDICTS[0], caption="paper/report/claims.rst", category="Claims"),
        VERDICTS[1],
        done=touch(f"{DONE}/claims"),
    log:
        f"{RESULTS}/log/claims.txt",
    params:
        scale=lambda wildcards, output: SCALE,
    message:
        "claims: every verdict from the results"
    shell:
        "fivedim judge --scale {params.scale} 2>&1 | tee -i {log}"


rule tables:
    input:
        ROWS,
        rules.claims.output.done,
        ancient(VERDICTS),
        key=ancient(PLAN.job("tables", PLAN.specs, *EVIDENCE, *SIZES)),
    output:
        PLAN.generated,
        done=touch(f"{DONE}/tables"),
    log:
        f"{RESULTS}/log/tables.txt",
    params:
        scale=lambda wildcards, output: SCALE,
    message:
        "tables: the paper's tables and numbers"
    shell:
        "fivedim tables --scale {params.scale} 2>&1 | tee -i {log}"


rule figure:
    input:
        lambda wildcards: expand(f"{RESULTS}/{{experiment}}.csv", experiment=FIGURES[wildcards.name]),
        key=lambda wildcards: ancient(DRAWINGS[wildcards.name]),
    output:
        pdf="figures/{name}.pdf",
        png=report("figures/{name}.png", caption="paper/report/figure.rst", category="Figures"),
        done=touch(f"{DONE}/figure_{{name}}"),
    log:
        f"{RESULTS}/log/figure_{{name}}.txt",
    params:
        results=lambda wildcards, output: RESULTS,
    message:
        "figure: {wildcards.name}"
    shell:
        "python figures/{wildcards.name}.py --results {params.results} --out {output.pdf} 2>&1 | tee -i {log}"


rule paper:
    input:
        ROWS,
        rules.tables.output.done,
        expand(rules.figure.output.done, name=FIGURES),
        ancient([*PLAN.generated, *PDFS]),
        key=ancient(PLAN.job("paper", PLAN.specs, *EVIDENCE, *SIZES, *DRAWN, *TEXT)),
    output:
        pdf="paper/paper.pdf",
        done=touch(f"{DONE}/paper"),
    log:
        f"{RESULTS}/log/paper.txt",
    message:
        "paper: {output.pdf}"
    shell:
        "fivedim paper 2>&1 | tee -i {log}"


rule manifest:
    input:
        rules.paper.output.done,
        key=rules.paper.input.key,
        files=ancient([*ROWS, *VERDICTS, *PLAN.generated, *PDFS, *PNGS, "paper/paper.pdf"]),
    output:
        f"{RESULTS}/manifest.json",
    log:
        f"{RESULTS}/log/manifest.txt",
    params:
        scale=lambda wildcards, output: SCALE,
    message:
        "manifest: the hash of everything built"
    shell:
        "fivedim manifest --scale {params.scale} {input.files} 2>&1 | tee -i {log}"
