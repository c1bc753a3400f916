// What the views know of where data comes from. A report answers from the data in its file, a server would by requests; no view
// knows which.

/**
 * A record in the timeline.
 * @typedef {object} RecordLine
 * @property {number} sequence
 * @property {string} kind
 * @property {string} name
 * @property {number} time microseconds since 1970-01-01 UTC
 * @property {number} bytes
 * @property {string} path live, log-only or abandoned
 * @property {number} depth number of rollbacks that go past the record
 * @property {number} operation id of its operation; -1 for none
 * @property {number} nesting number of operations around that one
 * @property {string} tool
 * @property {string} outcome
 * @property {string[]} slices names of the slices that the record changed
 */

/**
 * A sound record behind damage: nothing proves what it followed.
 * @typedef {{sequence: number, kind: string, name: string, time: number, bytes: number, segment: string, offset: number}} Beyond
 */

/**
 * A task at a step. Numbers are those of the tasks' creation; texts that are left out are objects.
 * @typedef {object} Task
 * @property {number} number
 * @property {number | null} parent
 * @property {any} id
 * @property {any} title
 * @property {string} status
 * @property {any} why what it waits for, or why it is in its state
 * @property {number | null} next place among those that may start, from 1
 * @property {boolean} active
 * @property {number} priority
 * @property {number} attempts
 * @property {number} failures
 * @property {string} created_at
 * @property {string} status_at
 * @property {number | null} record record of its last change
 */

/**
 * A value: its JSON, or what stands for it if it is left out.
 * @typedef {object} Shown
 * @property {string} text JSON
 * @property {boolean} whole whether the JSON is the value, and does not stand for it
 */

/**
 * An item of a slice, or a message.
 * @typedef {object} Item
 * @property {number} number identity within its list
 * @property {number} place place in the list at the step, from 0
 * @property {number} sequence record that brought it
 * @property {number} ordinal
 * @property {Shown} value
 */

/**
 * What a provider is sent in place of some records.
 * @typedef {object} Summary
 * @property {number} sequence
 * @property {number} from first record that it replaces
 * @property {number} to last record that it replaces
 * @property {any} reason
 * @property {[string, any][]} messages roles with texts; a text that is left out is an object
 */

/**
 * A window into a list at a step. `total` is null if nobody knows what the list held there.
 * @typedef {{total: number | null, items: Item[]}} Window
 */

/**
 * A difference of two steps: the fields of `diff --json`, with values as JSON texts.
 * @typedef {object} Difference
 * @property {string | null} slice
 * @property {string | null} conversation
 * @property {string} path
 * @property {'added' | 'removed' | 'changed'} change
 * @property {string} before
 * @property {string} after
 * @property {boolean} whole whether both values are there, and not left out
 */

/**
 * What is to be found. Empty lists allow everything.
 * @typedef {object} Facets
 * @property {string[]} kinds
 * @property {string[]} slices
 * @property {string[]} tools
 * @property {string[]} outcomes
 */

/**
 * What an evaluation has spent, abandoned answers included; without a cost if nobody has said it.
 * @typedef {{sequence: number, evaluation_id: string, input_tokens: number, output_tokens: number, cache_read_tokens: number, cache_write_tokens: number, cost_micros?: number}} Usage
 */

/**
 * A version of a file in a workspace.
 * @typedef {object} FileVersion
 * @property {number} number identity within its workspace
 * @property {number} sequence record from which on it is known
 * @property {string} path
 * @property {'file' | 'link'} kind
 * @property {string | null} permissions octal
 * @property {number} bytes
 * @property {string} digest git's object
 * @property {number | null} content
 */

/**
 * What a file holds: text, bytes that are no text, or why it cannot be read.
 * @typedef {{text?: string, base64?: string, error?: string}} Content
 */

/**
 * A file that differs between two steps.
 * @typedef {{workspace: string, path: string, before: FileVersion | null, after: FileVersion | null}} FileChange
 */

/**
 * Where data comes from.
 * @typedef {object} Source
 * @property {() => any} head what is known of the session at once; see the report's `Head`
 * @property {(from: number, count: number) => Promise<RecordLine[]>} records
 * @property {(sequence: number) => RecordLine | null} recordNow a record, if it was read already
 * @property {(sequence: number) => Promise<Shown>} document
 * @property {(number: number) => Promise<Beyond>} beyond a sound record behind damage, by its number among these
 * @property {(number: number) => Promise<Shown>} beyondDocument
 * @property {(facets: Facets) => Promise<Uint32Array>} filter records that the facets allow, in order
 * @property {() => Promise<{kinds: string[], slices: string[], tools: string[], outcomes: string[]}>} facets what there is to choose from
 * @property {(at: number) => Promise<{name: string, policy: string, total: number | null}[]>} slices
 * @property {(at: number, slice: string, from: number, count: number) => Promise<Window>} state
 * @property {(at: number) => Promise<{evaluation_id: string, total: number | null, refused?: string}[]>} conversations without a total and with a reason where one takes too much memory
 * @property {(at: number, evaluation: string, from: number, count: number) => Promise<Window & {summaries?: Summary[]}>} messages with the summaries that count there
 * @property {(at: number) => Promise<Task[]>} tasks in the order of their creation
 * @property {(at: number) => Promise<Usage[]>} usage what each conversation had used by then
 * @property {(at: number) => Promise<{name: string, total: number, gap: string | null}[]>} workspaces with the reason for which their files are not known
 * @property {(at: number, workspace: string) => Promise<FileVersion[]>} files in the order of their paths
 * @property {(file: FileVersion) => Promise<Content | null>} content null if it is left out
 * @property {(before: number, after: number) => Promise<FileChange[]>} fileChanges
 * @property {(at: number) => Record<string, string>} tags
 * @property {(before: number, after: number) => Promise<Difference[]>} diff
 * @property {() => Promise<{ledger: any[], waiting: Record<string, any>}>} operations
 * @property {(text: string, facets: Facets, found: (results: Found[]) => boolean) => Promise<void>} search hands over what is found until the listener returns false
 * @property {() => Promise<any>} integrity
 * @property {() => Promise<any>} statistics
 */

/**
 * Something that a search found.
 * @typedef {object} Found
 * @property {'record' | 'item' | 'message'} what
 * @property {number} sequence
 * @property {string} where name of the slice, the evaluation, or the record's kind
 * @property {string} excerpt
 */

export {};
