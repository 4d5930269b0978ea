import { defineConfig } from 'vite'

// The bundle is committed and embedded in berthctl (embed.go). File names carry no hash and
// nothing depends on the machine, so a build of the same sources gives the same bytes.
export default defineConfig({
  base: './',
  logLevel: 'warn',
  build: {
    target: 'es2022',
    assetsInlineLimit: 0, // the Content-Security-Policy allows no data: URLs for scripts and styles
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: 'planner.js',
        assetFileNames: 'planner[extname]',
        inlineDynamicImports: true,
      },
    },
  },
  esbuild: { jsx: 'automatic', jsxImportSource: 'preact', legalComments: 'none' },
})
