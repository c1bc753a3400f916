# Sourced by scripts of pages: makes the directory `project`, and defines `call`.
set -e
mkdir project
cd project

# Records a call of Claude Code by the events that its hooks receive: `call TOOL ARGUMENT COMMAND`.
# The command changes files in place of the tool.
call() {
  local input="\"file_path\":\"$PWD/$2\""
  [[ $1 == Bash ]] && input="\"command\":\"$2\""
  local event="{\"session_id\":\"s\",\"cwd\":\"$PWD\",\"tool_use_id\":\"$1\",\"tool_name\":\"$1\",\"tool_input\":{$input}"
  foldlog hook event claude <<< "$event,\"hook_event_name\":\"PreToolUse\"}"
  eval "$3"
  foldlog hook event claude <<< "$event,\"tool_response\":{},\"hook_event_name\":\"PostToolUse\"}"
}
