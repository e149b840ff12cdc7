//! A scripted model server that speaks Anthropic Messages and OpenAI Chat Completions.
