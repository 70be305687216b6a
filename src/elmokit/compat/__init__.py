"""The interfaces of older ELMo libraries: their code runs after changing the imports.

    allennlp.modules.elmo, allennlp.commands.elmo   ->  elmokit.compat.allennlp
    bilm                                            ->  elmokit.compat.bilm_tf
    tensorflow_hub as hub                           ->  elmokit.compat.tf_hub as hub
    elmoformanylangs                                ->  elmokit.compat.elmoformanylangs
    simple_elmo                                     ->  elmokit.compat.simple_elmo
    bio_embeddings.embed                            ->  elmokit.compat.seqvec

`elmokit.compat.install()` makes the old imports work unchanged; `python -m elmokit.compat SCRIPT`
runs a script that uses them. docs/migrating.md lists the differences from the original libraries,
and the reasons for them.
"""

from elmokit.compat.old_modules import install

__all__ = ["install"]
