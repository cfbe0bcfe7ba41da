// Scores a run by the suite's own rule, one line for each test: kind, group, id, how it ended and what was said, apart by tabs.
// Arguments: the folder of the suite, and the file that its own command wrote.
import { readFileSync } from 'node:fs'
import { pathToFileURL } from 'node:url'

const [suite, file] = process.argv.slice(-2)
const load = path => import(pathToFileURL(`${suite}/${path}`))
const { determineTestResult } = await load('lib/display.mjs')
const groups = (await load('tests/index.mjs')).default
groups.push((await load('tests/surrogate-control.mjs')).default)
const written = readFileSync(file, 'utf8')
const results = JSON.parse(written.slice(written.indexOf('{')))
for (const group of groups) {
  for (const test of group.tests.filter(test => !test.browser_only)) {
    const ending = determineTestResult(groups, test.id, results)[2]
    const said = Array.isArray(results[test.id]) ? results[test.id][1] : ''
    const words = [test.kind || 'required', group.id, test.id, ending, said]
    console.log(words.map(word => String(word).replace(/\s+/g, ' ')).join('\t'))
  }
}
