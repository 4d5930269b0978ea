import { dirname, relative, resolve } from 'node:path'
import type { MarkdownRenderer } from 'vitepress'

/** GitHub's anchor of a heading, so that a link works there and on the site. hack/check-docs.sh has the same rule. */
export function githubSlug(heading: string): string {
  return heading.trim().toLowerCase().replace(/[^\p{L}\p{N} _-]/gu, '').replaceAll(' ', '-')
}

/**
 * Adapts relative links: README.md is the index of its folder here, and files outside of docs/ are in the repository.
 * Code is no template of the site.
 */
export function adapt(md: MarkdownRenderer, docs: string, ref: string): void {
  const root = dirname(docs)
  md.core.ruler.push('berth-links', (state) => {
    for (const block of state.tokens) {
      for (const token of block.children ?? []) {
        if (token.type === 'code_inline') token.attrSet('v-pre', '') // {{ is no template
        const href = token.type === 'link_open' && token.attrGet('href')
        if (!href || /^([a-z]+:|#)/.test(href)) continue
        const [path = '', hash] = href.split('#')
        const target = resolve(dirname((state.env as { path: string }).path), path)
        if (relative(docs, target).startsWith('..')) {
          const tail = relative(root, target) + (hash ? `#${hash}` : '')
          token.attrSet('href', `https://github.com/berthnet/berth/blob/${ref}/${tail}`)
        } else {
          token.attrSet('href', href.replace(/README\.md(?=$|#)/, 'index.md'))
        }
      }
    }
  })
}
