#!/usr/bin/env bash
# What a run shows: report.html.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# ---- report.html
train base.json --set run.exit_at_step=10 --set evaluation.interval_steps=5
ends_with "a run" 0
check "it has a report" grep -q '<dt>step</dt><dd>10</dd>' run/report.html
check "the report says why it ended" grep -q '<p>ended: exit_at_step' run/report.html
for word in '<script' 'src=' 'href='; do check "the report has no $word" lacks "$(cat run/report.html)" "$word"; done
train base.json --set evaluation.interval_steps=5
check "a resumed run is one history" grep -q '<dt>restarts</dt><dd>1</dd>' run/report.html
check "its report goes on" grep -q '<dt>step</dt><dd>20</dd>' run/report.html
train base.json --set run.directory=none --set log.report=false --set run.exit_at_step=2
check "none is written where it is not wanted" [ ! -e none/report.html ]
mkdir own && echo mine >own/report.html
train base.json --set run.directory=own
ends_with "a report of somebody else" 2
check "it stands" same "$(cat own/report.html)" mine

finish
